#include <c10/util/Exception.h>

#include "gradwire/base/error.h"
#include "python/src/support.h"

namespace gradwire::python {
namespace {

// What users did wrong is a ValueError; lost peers and timeouts are not their
// fault.
void translate(std::exception_ptr error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const CommError& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (const Error& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

}  // namespace
}  // namespace gradwire::python

PYBIND11_MODULE(_native, m) {
  m.doc() = "The native part of gradwire; see the package for its interface.";
  // Types of Torch's own, so that they can be arguments.
  py::module_::import("torch.distributed");
  py::register_local_exception_translator(gradwire::python::translate);
  gradwire::python::bind_comm(m);
  gradwire::python::bind_ddp(m);
}
