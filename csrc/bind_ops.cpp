// Python's view of the context and the small operations: check, release the GIL, dispatch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention.h"
#include "bind.h"
#include "context.h"
#include "ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flexinfer {
namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void require_equal(const char* what, int64_t actual, int64_t expected) {
  if (actual != expected)
    refuse(std::string(what) + " is " + std::to_string(actual) + ", must be " + std::to_string(expected));
}

void require_at_least(const char* what, int64_t actual, int64_t least) {
  if (actual < least)
    refuse(std::string(what) + " is " + std::to_string(actual) + ", must be at least " + std::to_string(least));
}

template <class Array>
Rows rows_of(const char* name, const Array& array) {
  const int64_t rows = array.shape(0), width = array.shape(1);
  if (rows > 0 && width > 1 && array.stride(1) != 1) refuse(std::string(name) + " must have contiguous rows");
  if (rows > 1 && array.stride(0) < width) refuse(std::string(name) + " has rows that overlap or run backwards");
  return {const_cast<float*>(array.data()), rows, width, array.stride(0)};
}

void require_same_shape(const char* what, const Rows& a, const Rows& b) {
  require_equal((std::string("rows of ") + what).c_str(), a.rows, b.rows);
  require_equal((std::string("width of ") + what).c_str(), a.width, b.width);
}

template <class Target, bool kAccumulate>
void bind_rms_norm(Target& target, const ConstMatrix& x, const Vector& weight, float eps, const Matrix& out) {
  const Rows from = rows_of("x", x), to = rows_of("out", out);
  if (from.rows != to.rows || from.width != to.width) require_same_shape("out", to, from);
  require_equal("size of weight", weight.shape(0), from.width);
  issue(target, RmsNorm{from, weight.data(), eps, kAccumulate, to});
}

void bind_rope_angles(const Doubles& inverse_frequencies, const Ints& positions, double magnitude, const Matrix& out) {
  const Rows to = rows_of("out", out);
  const int64_t pairs = inverse_frequencies.shape(0);
  require_equal("rows of out", to.rows, positions.shape(0));
  require_equal("width of out", to.width, 2 * pairs);
  nb::gil_scoped_release release;
  for (int64_t i = 0; i < to.rows; ++i)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = inverse_frequencies.data()[pair] * positions.data()[i];
      to.row(i)[pair] = static_cast<float>(std::cos(angle) * magnitude);
      to.row(i)[pairs + pair] = static_cast<float>(std::sin(angle) * magnitude);
    }
}

template <class Target>
void bind_rope(Target& target, const Matrix& x, int64_t heads, int64_t head_dim, const ConstMatrix& angles,
               bool adjacent) {
  const Rows in_place = rows_of("x", x);
  const Rows table = rows_of("angles", angles);
  require_at_least("heads", heads, 1);
  require_equal("width of x", in_place.width, heads * head_dim);
  require_equal("rows of angles", table.rows, in_place.rows);
  if (table.width % 2 != 0 || table.width > head_dim)
    refuse("width of angles is " + std::to_string(table.width) + ", must be even and at most head_dim, " +
           std::to_string(head_dim));
  issue(target, Rope{in_place, heads, table, adjacent});
}

template <class Target>
void bind_scale(Target& target, const Matrix& x, float factor) {
  issue(target, Scale{rows_of("x", x), factor});
}

template <class Target>
void bind_softcap(Target& target, const Matrix& x, float cap) {
  const Rows in_place = rows_of("x", x);
  if (!(cap > 0.0f)) refuse("cap must be positive, not " + std::to_string(cap));
  issue(target, Softcap{in_place, cap});
}

void bind_exp(Context& context, const Matrix& x) {
  const Rows in_place = rows_of("x", x);
  nb::gil_scoped_release release;
  exp_rows(context, in_place);
}

KvType kv_type_of(int64_t type_id) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0})
    if (static_cast<int64_t>(type) == type_id) return type;
  refuse("type_id is " + std::to_string(type_id) + ", must be 0 (F32), 1 (F16) or 8 (Q8_0)");
}

void require_kv_shape(int64_t kv_heads, int64_t head_dim, KvType type) {
  require_at_least("kv_heads", kv_heads, 1);
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0)
    refuse("head_dim is " + std::to_string(head_dim) + ", must be even, from 2 to " + std::to_string(kMaxHeadDim));
  if (type == KvType::kQ8_0 && head_dim % kKvBlock != 0)
    refuse("head_dim is " + std::to_string(head_dim) + ", must be a multiple of " + std::to_string(kKvBlock) +
           " in Q8_0");
}

int64_t bind_kv_page_bytes(int64_t kv_heads, int64_t head_dim, int64_t type_id) {
  const KvType type = kv_type_of(type_id);
  require_kv_shape(kv_heads, head_dim, type);
  return 2 * KvPages{nullptr, 0, nullptr, kv_heads, head_dim, type}.half_bytes();
}

KvPages pages_of(uintptr_t pages, int64_t page_stride_bytes, int64_t kv_heads, int64_t head_dim, int64_t type_id) {
  const KvType type = kv_type_of(type_id);
  require_kv_shape(kv_heads, head_dim, type);
  const KvPages kv{reinterpret_cast<std::byte*>(pages), page_stride_bytes, nullptr, kv_heads, head_dim, type};
  require_at_least("page_stride_bytes", page_stride_bytes, 2 * kv.half_bytes());
  return kv;
}

// The table, once it is known to hold the pages of `tokens` tokens from position `start` on, and of all before them.
const int32_t* pages_until(const Ints& table, int64_t start, int64_t tokens) {
  require_at_least("start", start, 0);
  const int64_t needed = start / kPageTokens + (start % kPageTokens + tokens + kPageTokens - 1) / kPageTokens;
  require_at_least("size of table", table.shape(0), needed);
  for (int64_t page = 0; page < needed; ++page) require_at_least("page number", table.data()[page], 0);
  return table.data();
}

void bind_kv_append(Context& context, const ConstMatrix& k, const ConstMatrix& v, uintptr_t pages,
                    int64_t page_stride_bytes, const Ints& table, int64_t start, int64_t kv_heads, int64_t head_dim,
                    int64_t type_id) {
  const Rows keys = rows_of("k", k), values = rows_of("v", v);
  KvPages kv = pages_of(pages, page_stride_bytes, kv_heads, head_dim, type_id);
  kv.table = pages_until(table, start, keys.rows);
  require_equal("width of k", keys.width, kv_heads * head_dim);
  require_same_shape("v", values, keys);
  nb::gil_scoped_release release;
  kv_append(context, kv, keys.data, keys.stride, values.data, values.stride, keys.rows, start);
}

// All but the table, and where the tokens begin.
Attention attention_of(const Rows& q, const Rows& out, const KvPages& kv, int64_t heads, float scale, int64_t window,
                       float softcap) {
  require_equal("width of q", q.width, heads * kv.head_dim);
  require_same_shape("out", out, q);
  if (heads < kv.kv_heads || heads % kv.kv_heads != 0)
    refuse("heads is " + std::to_string(heads) + ", must be a multiple of kv_heads, " + std::to_string(kv.kv_heads));
  require_at_least("window", window, 0);
  if (!(softcap >= 0.0f)) refuse("softcap must be 0 (none) or positive, not " + std::to_string(softcap));
  return {kv, q.data, q.stride, out.data, out.stride, q.rows, 0, heads, scale, window, softcap};
}

void bind_attention(Context& context, const ConstMatrix& q, const Matrix& out, uintptr_t pages,
                    int64_t page_stride_bytes, const Ints& table, int64_t start, int64_t heads, int64_t kv_heads,
                    int64_t head_dim, int64_t type_id, float scale, int64_t window, float softcap) {
  const KvPages kv = pages_of(pages, page_stride_bytes, kv_heads, head_dim, type_id);
  Attention args = attention_of(rows_of("q", q), rows_of("out", out), kv, heads, scale, window, softcap);
  args.kv.table = pages_until(table, start, args.tokens);
  args.start = start;
  nb::gil_scoped_release release;
  attention(context, args);
}

void bind_cached_attention(Program& program, const ConstMatrix& k, const ConstMatrix& v, const ConstMatrix& q,
                           const Matrix& out, uintptr_t pages, int64_t page_stride_bytes, int64_t kind, int64_t heads,
                           int64_t kv_heads, int64_t head_dim, int64_t type_id, float scale, int64_t window,
                           float softcap) {
  const KvPages kv = pages_of(pages, page_stride_bytes, kv_heads, head_dim, type_id);
  const Rows keys = rows_of("k", k), values = rows_of("v", v);
  require_equal("rows of k", keys.rows, program.tokens());
  require_equal("width of k", keys.width, kv_heads * head_dim);
  require_same_shape("v", values, keys);
  const Rows queries = rows_of("q", q);
  require_equal("rows of q", queries.rows, keys.rows);
  require_at_least("kind", kind, 0);
  issue(program, CachedAttention{keys, values,
                                 attention_of(queries, rows_of("out", out), kv, heads, scale, window, softcap), kind});
}

// Held by Python for one sweep: spans, with the tables they point to.
struct Spans {
  std::vector<Span> spans;
  std::vector<Ints> tables;

  void add(int64_t first, int64_t tokens, int64_t start, const std::vector<Ints>& of_kinds) {
    require_at_least("first", first, 0);
    require_at_least("tokens", tokens, 1);
    Span span{first, tokens, start, {}};
    for (const Ints& table : of_kinds) {
      span.tables.push_back(pages_until(table, start, tokens));
      tables.push_back(table);
    }
    spans.push_back(std::move(span));
  }
};

void bind_run(const Program& program, int64_t first, int64_t last, const Spans& spans, const Ints64& addresses) {
  require_at_least("first", first, 0);
  require_at_least("last", last, first);
  require_at_least("size", program.size(), last);
  require_at_least("size of addresses", addresses.shape(0), program.requests());
  for (const Span& span : spans.spans) {
    require_at_least("tokens of the program", program.tokens(), span.first + span.tokens);
    require_at_least("tables of a span", static_cast<int64_t>(span.tables.size()), program.kinds());
  }
  nb::gil_scoped_release release;
  program.run(first, last, {spans.spans, addresses.data()});
}

// The operations that are run at once, and those that are recorded.
template <class Target>
void bind_small(nb::module_& m) {
  m.def("rms_norm", &bind_rms_norm<Target, false>, "ctx"_a, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
        "out"_a.noconvert(), "out = x / sqrt(mean(x^2) + eps) * weight, row by row; out may be x.");
  m.def("rms_norm_add", &bind_rms_norm<Target, true>, "ctx"_a, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
        "out"_a.noconvert(), "out += x / sqrt(mean(x^2) + eps) * weight, row by row.");
  m.def("rope", &bind_rope<Target>, "ctx"_a, "x"_a.noconvert(), "heads"_a, "head_dim"_a, "angles"_a.noconvert(),
        "adjacent"_a, "Turns the first 2 * pairs elements of every head in place: pairs (i, i + pairs), or (2i, 2i + 1).");
  m.def("scale", &bind_scale<Target>, "ctx"_a, "x"_a.noconvert(), "factor"_a, "x *= factor, in place.");
  m.def("softcap", &bind_softcap<Target>, "ctx"_a, "x"_a.noconvert(), "cap"_a,
        "x = cap * tanh(x / cap), in place.");
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("available_isas", &available_isas, "Instruction sets that this build has and this processor runs, best last.");

  nb::class_<Context>(m, "Context",
                      "What every call runs in: `threads` threads (the caller is one), one instruction set, scratch.")
      .def(nb::init<int, std::optional<std::string>>(), "threads"_a, "isa"_a = nb::none())
      .def_prop_ro("threads", &Context::threads)
      .def_prop_ro("isa", &Context::isa)
      .def_prop_ro("scratch_bytes", &Context::scratch_bytes, "Bytes of scratch memory held; grows on demand.");

  nb::class_<Program>(m, "Program", "Calls of sweeps of `tokens` tokens, recorded in order and replayed in ranges.")
      .def(nb::init<Context&, int64_t>(), "ctx"_a, "tokens"_a, nb::keep_alive<1, 2>())
      .def("__len__", &Program::size)
      .def("attention", &bind_cached_attention, "k"_a.noconvert(), "v"_a.noconvert(), "q"_a.noconvert(),
           "out"_a.noconvert(), "pages"_a, "page_stride_bytes"_a, "kind"_a, "heads"_a, "kv_heads"_a, "head_dim"_a,
           "type_id"_a, "scale"_a, "window"_a = 0, "softcap"_a = 0.0f,
           "Records kv_append and attention of each span, by its table of that kind.")
      .def("run", &bind_run, "first"_a, "last"_a, "spans"_a, "addresses"_a.noconvert(),
           "Runs the recorded calls [first, last); request r of the stream lies at addresses[r].");
  nb::class_<Spans>(m, "Spans", "The tokens of one sweep, by sequence.")
      .def(nb::init<>())
      .def("add", &Spans::add, "first"_a, "tokens"_a, "start"_a, "tables"_a,
           "Rows first .. of the activations stand at positions start .., in the pages of these tables, one a kind.");
  bind_small<Context>(m);
  bind_small<Program>(m);
  m.def("rope_angles", &bind_rope_angles, "inv_freq"_a.noconvert(), "positions"_a.noconvert(), "magnitude"_a,
        "out"_a.noconvert(), "out[i] = the cosines, then the sines, of inv_freq * positions[i], times magnitude.");
  m.def("exp", &bind_exp, "ctx"_a, "x"_a.noconvert(), "x = exp(x) in place: the exponential that attention uses.");

  m.attr("KV_PAGE_TOKENS") = kPageTokens;
  m.def("kv_page_bytes", &bind_kv_page_bytes, "kv_heads"_a, "head_dim"_a, "type_id"_a,
        "Bytes of one layer's part of a page of KV_PAGE_TOKENS positions: keys and values.");
  m.def("kv_append", &bind_kv_append, "ctx"_a, "k"_a.noconvert(), "v"_a.noconvert(), "pages"_a, "page_stride_bytes"_a,
        "table"_a.noconvert(), "start"_a, "kv_heads"_a, "head_dim"_a, "type_id"_a,
        "Writes the keys and values of n tokens to the positions start .. start + n - 1, rounded to the cache's type.");
  m.def("attention", &bind_attention, "ctx"_a, "q"_a.noconvert(), "out"_a.noconvert(), "pages"_a,
        "page_stride_bytes"_a, "table"_a.noconvert(), "start"_a, "heads"_a, "kv_heads"_a, "head_dim"_a,
        "type_id"_a, "scale"_a, "window"_a = 0, "softcap"_a = 0.0f,
        "Attention of n tokens at the positions start .. over the cache, which holds their own keys already.");
}

}  // namespace flexinfer
