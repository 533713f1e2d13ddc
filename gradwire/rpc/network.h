#pragma once

// Private to rpc: which interface TensorPipe listens on.

#include <string>

namespace gradwire::rpc {

// Makes TensorPipe listen on `interface`, or where none is given on the one
// that has `address`; both empty: wherever the host's name leads. Throws Error
// for an interface that does not exist or has no address, where TensorPipe
// would take loopback without a word, and for another one than before: a
// process chooses once.
void choose_interface(const std::string& interface, const std::string& address);

}  // namespace gradwire::rpc
