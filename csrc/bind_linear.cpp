// Python's view of the products: check, release the GIL, dispatch. Weights are addresses, for they live in one mapping.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"
#include "context.h"
#include "linear.h"
#include "ports.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flexinfer {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using MutableFloats = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string text(int64_t value) { return std::to_string(value); }

template <class Array>
void check_matrix(const Array& array, const char* name, int64_t rows, int64_t least_width) {
  const int64_t width = static_cast<int64_t>(array.shape(1));
  if (static_cast<int64_t>(array.shape(0)) != rows || width < least_width)
    refuse(std::string(name) + " has shape (" + text(array.shape(0)) + ", " + text(width) + "), needed: " + text(rows) +
           " rows of at least " + text(least_width));
  if (width > 1 && array.stride(1) != 1) refuse(std::string(name) + " must have contiguous rows");
  if (rows > 1 && array.stride(0) < width) refuse(std::string(name) + " has rows that overlap or run backwards");
}

void check_aligned(const void* data, const char* name) {
  if (reinterpret_cast<uintptr_t>(data) % 4) refuse(std::string(name) + " must be aligned to 4 bytes");
}

// The kernels of the type, once rows and columns are checked.
const TypeKernels& checked_type(const TypeKernels* type, int type_id, int64_t rows, int64_t columns) {
  if (!type) refuse("no kernel for block type " + text(type_id));
  if (rows < 1 || columns < 1) refuse("rows and columns must be positive, not " + text(rows) + " and " + text(columns));
  if (columns % type->block_columns)
    refuse(text(columns) + " columns are not whole blocks of " + text(type->block_columns));
  if (columns > (int64_t{1} << 31) || rows > (int64_t{1} << 40) / columns)
    refuse("a matrix of " + text(rows) + " rows and " + text(columns) + " columns is too large");
  return *type;
}

const uint8_t* pointer(uintptr_t address, const char* name) {
  if (!address) refuse(std::string(name) + " is a null address");
  return reinterpret_cast<const uint8_t*>(address);
}

// Types and shapes are the same for every instruction set.
const TypeKernels* any_type(int type_id) {
  for (const TypeKernels& type : scalar_kernels().linear.types)
    if (type.id == type_id) return &type;
  return nullptr;
}

std::vector<int> bind_supported_types() {
  std::vector<int> ids;
  for (const TypeKernels& type : scalar_kernels().linear.types) ids.push_back(type.id);
  return ids;
}

int64_t bind_activation_bytes(int64_t columns) {
  if (columns < 1 || columns % kActivationValues)
    refuse("activations are quantised 32 at a time; " + text(columns) + " is not a multiple");
  return activation_bytes(columns);
}

int64_t bind_group_bytes(int type_id, int64_t columns) {
  const TypeKernels& type = checked_type(any_type(type_id), type_id, 1, columns);
  return kGroupRows * (columns / type.block_columns) * type.block_bytes;
}

template <class Target>
void bind_quantize(Target& target, const Floats& x, const MutableBytes& out) {
  const int64_t tokens = static_cast<int64_t>(x.shape(0)), columns = static_cast<int64_t>(x.shape(1));
  check_matrix(x, "x", tokens, columns);
  check_matrix(out, "out", tokens, bind_activation_bytes(columns));
  check_aligned(out.data(), "out");
  if (out.stride(0) % 4) refuse("rows of out must be aligned to 4 bytes");
  issue(target, Quantize{x.data(), x.stride(0), tokens, columns, out.data(), out.stride(0)});
}

void bind_interleave(Context& context, int type_id, uintptr_t source, uintptr_t destination, int64_t rows,
                     int64_t columns) {
  const TypeKernels& type = checked_type(find_type(context, type_id), type_id, rows, columns);
  const uint8_t* from = pointer(source, "source");
  uint8_t* to = const_cast<uint8_t*>(pointer(destination, "destination"));
  nb::gil_scoped_release release;
  interleave(context, type, from, rows, columns, to);
}

// The product, once all but the place of its weights is checked.
Product checked_product(const Context& context, int type_id, bool interleaved, int64_t rows, int64_t columns,
                        const Floats& x, const std::optional<Bytes>& xq, const MutableFloats& out, int64_t row0,
                        int epilogue, const std::optional<Vector>& bias) {
  const TypeKernels& type = checked_type(find_type(context, type_id), type_id, rows, columns);
  const int64_t tokens = static_cast<int64_t>(x.shape(0));
  check_matrix(x, "x", tokens, columns);
  if (static_cast<int64_t>(x.shape(1)) != columns)
    refuse("x has " + text(x.shape(1)) + " columns, the weights " + text(columns));
  if (row0 < 0) refuse("row0 is negative: " + text(row0));
  check_matrix(out, "out", tokens, row0 + rows);
  if (epilogue < 0 || epilogue > static_cast<int>(Epilogue::kGeluMul)) refuse("no epilogue " + text(epilogue));
  LinearJob job{nullptr, interleaved, rows, columns, nullptr, 0, tokens, out.data() + row0,
                out.stride(0), static_cast<Epilogue>(epilogue), nullptr};
  if (type.float_activations) {
    job.x = reinterpret_cast<const uint8_t*>(x.data());
    job.x_stride_bytes = x.stride(0) * static_cast<int64_t>(sizeof(float));
  } else {
    if (!xq) refuse("block type " + text(type_id) + " needs quantised activations: xq is None");
    check_matrix(*xq, "xq", tokens, bind_activation_bytes(columns));
    check_aligned(xq->data(), "xq");
    if (xq->stride(0) % 4) refuse("rows of xq must be aligned to 4 bytes");
    job.x = xq->data();
    job.x_stride_bytes = xq->stride(0);
  }
  if (bias) {
    if (static_cast<int64_t>(bias->shape(0)) < row0 + rows)
      refuse("bias has " + text(bias->shape(0)) + " values, needed: " + text(row0 + rows));
    if (bias->stride(0) != 1) refuse("bias must be contiguous");
    job.bias = bias->data() + row0;
  }
  return {&type, job};
}

template <class Target>
void bind_linear_product(Target& target, int type_id, bool interleaved, uintptr_t weights, int64_t rows,
                         int64_t columns, const Floats& x, const std::optional<Bytes>& xq, const MutableFloats& out,
                         int64_t row0, int epilogue, const std::optional<Vector>& bias) {
  Product product = checked_product(context_of(target), type_id, interleaved, rows, columns, x, xq, out, row0,
                                    epilogue, bias);
  product.job.weights = pointer(weights, "weights");
  issue(target, product);
}

void bind_streamed_product(Program& program, int type_id, int64_t request, int64_t offset_bytes, int64_t rows,
                           int64_t columns, const Floats& x, const std::optional<Bytes>& xq, const MutableFloats& out,
                           int64_t row0, int epilogue, const std::optional<Vector>& bias) {
  Product product = checked_product(program.context(), type_id, false, rows, columns, x, xq, out, row0, epilogue, bias);
  if (request < 0 || offset_bytes < 0) refuse("request and offset_bytes must not be negative");
  product.request = request;
  product.offset_bytes = offset_bytes;
  issue(program, product);
}

void bind_dequantize(int type_id, uintptr_t source, int64_t rows, int64_t columns, const MutableFloats& out) {
  const TypeKernels& type = checked_type(any_type(type_id), type_id, rows, columns);
  check_matrix(out, "out", rows, columns);
  const uint8_t* from = pointer(source, "source");
  nb::gil_scoped_release release;
  for (int64_t row = 0; row < rows; ++row)
    type.dequantize(from + row * (columns / type.block_columns) * type.block_bytes, columns,
                    out.data() + row * out.stride(0));
}

double bind_read_bandwidth(Context& context, uintptr_t address, int64_t size_bytes, int repeats) {
  if (size_bytes < 256 || repeats < 1) refuse("size_bytes must be at least 256 and repeats at least 1");
  const uint8_t* memory = pointer(address, "address");
  nb::gil_scoped_release release;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) read_all(context, memory, size_bytes);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(size_bytes) * repeats / elapsed.count();
}

double bind_port_rate(Context& context, const std::string& values) {
  const PortKernels& kernels = context.kernels().ports;
  const PortKernel kernel = values == "int8"       ? kernels.int8
                            : values == "float32"  ? kernels.float32
                            : values == "bfloat16" ? kernels.bf16
                                                   : nullptr;
  if (!kernel) refuse("values are int8, float32 or bfloat16, not '" + values + "'");
  nb::gil_scoped_release release;
  return port_rate(context, kernel);
}

template <class Target>
void bind_products(nb::module_& m) {
  m.def("quantize", bind_quantize<Target>, "ctx"_a, "x"_a.noconvert(), "out"_a.noconvert(),
        "Quantise x, float32 [tokens, columns], into out, uint8 [tokens, activation_bytes(columns)].\n\n"
        "Int8 per 32 values: scale absmax / 127, q = x * (127 / absmax) rounded half to even. A block below 2^-100 in\n"
        "magnitude becomes zero; one with an infinity or NaN makes every output that it reaches NaN.");
  m.def("linear", bind_linear_product<Target>, "ctx"_a, "type_id"_a, "interleaved"_a, "weights"_a, "rows"_a, "columns"_a,
        "x"_a.noconvert(), "xq"_a.noconvert().none(), "out"_a.noconvert(), "row0"_a, "epilogue"_a,
        "bias"_a.noconvert().none(),
        "y = x . W^T + bias for `rows` weight rows at address weights, into out[:, row0 : row0 + rows].\n\n"
        "x is float32 [tokens, columns], xq its quantised form (None where the type takes floats), out float32\n"
        "[tokens, at least row0 + rows], bias float32 [at least row0 + rows], read from row0. Epilogues: 0 out = y,\n"
        "1 out += y, 2 out = silu(out) * y, 3 out = gelu(out) * y (the tanh form). Bits do not depend on tokens per\n"
        "call, threads, layout, or cuts at multiples of 16 rows.");
}

}  // namespace

void bind_linear(nb::module_& m) {
  bind_products<Context>(m);
  bind_products<Program>(m);
  m.def("linear_streamed", bind_streamed_product, "program"_a, "type_id"_a, "request"_a, "offset_bytes"_a, "rows"_a,
        "columns"_a, "x"_a.noconvert(), "xq"_a.noconvert().none(), "out"_a.noconvert(), "row0"_a, "epilogue"_a,
        "bias"_a.noconvert().none(),
        "Records linear of rows as in the file that lie offset_bytes behind the address of a streamed request.");
  m.def("supported_types", bind_supported_types, "The ggml ids of the block types that can be multiplied by.");
  m.def("activation_bytes", bind_activation_bytes, "columns"_a,
        "Bytes of one token's quantised activations; columns is a multiple of 32.");
  m.def("group_bytes", bind_group_bytes, "type_id"_a, "columns"_a, "Bytes of a group of 16 rows, in either layout.");
  m.def("interleave", bind_interleave, "ctx"_a, "type_id"_a, "source"_a, "destination"_a, "rows"_a, "columns"_a,
        "Rows as in the file at address source to interleaved groups at destination, padded to whole groups.");
  m.def("dequantize", bind_dequantize, "type_id"_a, "source"_a, "rows"_a, "columns"_a, "out"_a.noconvert(),
        "Rows as in the file at address source to float32 out [rows, at least columns].");
  m.def("read_bandwidth", bind_read_bandwidth, "ctx"_a, "address"_a, "size_bytes"_a, "repeats"_a,
        "Bytes per second at which all threads together read this memory and do nothing else.");
  m.def("port_rate", bind_port_rate, "ctx"_a, "values"_a,
        "Operations per second of all threads' multiply instructions alone, two per multiply-add; values: 'int8',\n"
        "'float32', or 'bfloat16', which are float32's where this instruction set has none of its own.");
}

}  // namespace flexinfer
