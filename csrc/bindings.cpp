// The module flexinfer._kernels.
#include <nanobind/nanobind.h>

namespace flexinfer {
void bind_linear(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
}  // namespace flexinfer

NB_MODULE(_kernels, m) {
  nanobind::set_leak_warnings(false);  // an LLM that a script never closes is no fault worth a page of text
  m.doc() = "The CPU kernels: products with quantised weights, attention, and the small operations between.";
  flexinfer::bind_ops(m);
  flexinfer::bind_linear(m);
}
