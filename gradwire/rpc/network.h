#pragma once

// Private to rpc: which interface TensorPipe listens on.

#include <string>

namespace gradwire::rpc {

// Makes TensorPipe listen on `interface`, or on the one that has `address` when
// `interface` is empty. With both empty TensorPipe resolves the host's name.
// Throws Error for an interface that does not exist or has no address
// (TensorPipe would silently use loopback) and for another interface than the
// first one of this process, which cannot be changed.
void choose_interface(const std::string& interface, const std::string& address);

}  // namespace gradwire::rpc
