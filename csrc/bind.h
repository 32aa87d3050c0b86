// What the bindings share: a call is checked, then run at once or recorded.
#pragma once

#include <nanobind/nanobind.h>

#include "context.h"
#include "program.h"

namespace flexinfer {

// A Context runs it, without the GIL.
template <class Call>
void issue(Context& context, const Call& call) {
  nanobind::gil_scoped_release release;
  run(context, call);
}

// A Program keeps it for later.
template <class Call>
void issue(Program& program, const Call& call) {
  program.add(call);
}

inline Context& context_of(Context& context) { return context; }
inline Context& context_of(Program& program) { return program.context(); }

}  // namespace flexinfer
