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

#include "attention.h"
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

template <bool kAccumulate>
void bind_rms_norm(Context& context, const ConstMatrix& x, const Vector& weight, float eps, const Matrix& out) {
  const Rows from = rows_of("x", x), to = rows_of("out", out);
  if (from.rows != to.rows || from.width != to.width) require_same_shape("out", to, from);
  require_equal("size of weight", weight.shape(0), from.width);
  nb::gil_scoped_release release;
  rms_norm(context, from, weight.data(), eps, kAccumulate, to);
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

void bind_rope(Context& context, const Matrix& x, int64_t heads, int64_t head_dim, const ConstMatrix& angles,
               bool adjacent) {
  const Rows in_place = rows_of("x", x);
  const Rows table = rows_of("angles", angles);
  require_at_least("heads", heads, 1);
  require_equal("width of x", in_place.width, heads * head_dim);
  require_equal("rows of angles", table.rows, in_place.rows);
  if (table.width % 2 != 0 || table.width > head_dim)
    refuse("width of angles is " + std::to_string(table.width) + ", must be even and at most head_dim, " +
           std::to_string(head_dim));
  nb::gil_scoped_release release;
  rope(context, in_place, heads, table, adjacent);
}

void bind_scale(Context& context, const Matrix& x, float factor) {
  const Rows in_place = rows_of("x", x);
  nb::gil_scoped_release release;
  scale(context, in_place, factor);
}

void bind_softcap(Context& context, const Matrix& x, float cap) {
  const Rows in_place = rows_of("x", x);
  if (!(cap > 0.0f)) refuse("cap must be positive, not " + std::to_string(cap));
  nb::gil_scoped_release release;
  softcap(context, in_place, cap);
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

KvPages pages_of(uintptr_t pages, int64_t page_stride_bytes, const Ints& table, int64_t start, int64_t tokens,
                 int64_t kv_heads, int64_t head_dim, int64_t type_id) {
  const KvType type = kv_type_of(type_id);
  require_kv_shape(kv_heads, head_dim, type);
  const KvPages kv{reinterpret_cast<std::byte*>(pages), page_stride_bytes, table.data(), kv_heads, head_dim, type};
  require_at_least("page_stride_bytes", page_stride_bytes, 2 * kv.half_bytes());
  require_at_least("start", start, 0);
  const int64_t needed = start / kPageTokens + (start % kPageTokens + tokens + kPageTokens - 1) / kPageTokens;
  require_at_least("size of table", table.shape(0), needed);
  for (int64_t page = 0; page < needed; ++page) require_at_least("page number", table.data()[page], 0);
  return kv;
}

void bind_kv_append(Context& context, const ConstMatrix& k, const ConstMatrix& v, uintptr_t pages,
                    int64_t page_stride_bytes, const Ints& table, int64_t start, int64_t kv_heads, int64_t head_dim,
                    int64_t type_id) {
  const Rows keys = rows_of("k", k), values = rows_of("v", v);
  const KvPages kv = pages_of(pages, page_stride_bytes, table, start, keys.rows, kv_heads, head_dim, type_id);
  require_equal("width of k", keys.width, kv_heads * head_dim);
  require_same_shape("v", values, keys);
  nb::gil_scoped_release release;
  kv_append(context, kv, keys.data, keys.stride, values.data, values.stride, keys.rows, start);
}

void bind_attention(Context& context, const ConstMatrix& q, const Matrix& out, uintptr_t pages,
                    int64_t page_stride_bytes, const Ints& table, int64_t start, int64_t heads, int64_t kv_heads,
                    int64_t head_dim, int64_t type_id, float scale, int64_t window, float softcap) {
  const Rows from = rows_of("q", q), to = rows_of("out", out);
  const KvPages kv = pages_of(pages, page_stride_bytes, table, start, from.rows, kv_heads, head_dim, type_id);
  require_equal("width of q", from.width, heads * head_dim);
  require_same_shape("out", to, from);
  if (heads < kv_heads || heads % kv_heads != 0)
    refuse("heads is " + std::to_string(heads) + ", must be a multiple of kv_heads, " + std::to_string(kv_heads));
  require_at_least("window", window, 0);
  if (!(softcap >= 0.0f)) refuse("softcap must be 0 (none) or positive, not " + std::to_string(softcap));
  nb::gil_scoped_release release;
  attention(context, {kv, from.data, from.stride, to.data, to.stride, from.rows, start, heads, scale, window, softcap});
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

  m.def("rms_norm", &bind_rms_norm<false>, "ctx"_a, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
        "out"_a.noconvert(), "out = x / sqrt(mean(x^2) + eps) * weight, row by row; out may be x.");
  m.def("rms_norm_add", &bind_rms_norm<true>, "ctx"_a, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
        "out"_a.noconvert(), "out += x / sqrt(mean(x^2) + eps) * weight, row by row.");
  m.def("rope_angles", &bind_rope_angles, "inv_freq"_a.noconvert(), "positions"_a.noconvert(), "magnitude"_a,
        "out"_a.noconvert(), "out[i] = the cosines, then the sines, of inv_freq * positions[i], times magnitude.");
  m.def("rope", &bind_rope, "ctx"_a, "x"_a.noconvert(), "heads"_a, "head_dim"_a, "angles"_a.noconvert(), "adjacent"_a,
        "Turns the first 2 * pairs elements of every head in place: pairs (i, i + pairs), or (2i, 2i + 1).");
  m.def("scale", &bind_scale, "ctx"_a, "x"_a.noconvert(), "factor"_a, "x *= factor, in place.");
  m.def("softcap", &bind_softcap, "ctx"_a, "x"_a.noconvert(), "cap"_a, "x = cap * tanh(x / cap), in place.");
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
