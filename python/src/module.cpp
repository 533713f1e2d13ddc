#include <c10/util/Exception.h>

#include <stdexcept>

#include "gradwire/base/error.h"
#include "python/src/support.h"

namespace gradwire::python {
namespace {

// A caller's mistake is a gradwire::Error and becomes a ValueError. Everything
// else becomes a RuntimeError: lost peers, timeouts, what Torch throws, and
// errors of the standard library, some of which pybind would call a ValueError.
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
  } catch (const std::logic_error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace
}  // namespace gradwire::python

PYBIND11_MODULE(_native, m) {
  m.doc() = "The native part of gradwire; see the package for its interface.";
  // Registers Torch's types, so that they can be arguments.
  py::module_::import("torch.distributed");
  py::register_local_exception_translator(gradwire::python::translate);
  gradwire::python::bind_comm(m);
  gradwire::python::bind_ddp(m);
  gradwire::python::bind_optim(m);
}
