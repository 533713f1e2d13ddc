#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "gradwire/base/bytes.h"

namespace gradwire::compat {

struct GlooOptions {
  // Named in errors.
  std::string group;
  std::chrono::milliseconds timeout{};
  // The network interface to bind ("eth0"); empty: bind `address`.
  std::string interface;
  // A local address; empty: whatever the host name resolves to.
  std::string address;
  // A Gloo backend whose sockets are bound as these should be; null: as above.
  c10::intrusive_ptr<c10d::Backend> like = {};
};

// A Gloo backend that adds to `meter` what each collective hands to the
// transport from this rank and turns its failures into CommError with group
// and rank, whoever submits it: our own calls and the Reducer's alike.
// Collective: returns when all ranks have connected.
c10::intrusive_ptr<c10d::Backend> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world,
    const GlooOptions& options,
    std::shared_ptr<ByteMeter> meter);

// The Gloo backend inside of what a group has for the CPU, or null when it is
// another one.
c10::intrusive_ptr<c10d::Backend> find_gloo(
    const c10::intrusive_ptr<c10d::Backend>& backend);

// How long collectives of a Gloo backend may take.
std::chrono::milliseconds timeout_of(c10d::Backend& gloo);

// Whether the calling thread is one of the backend's own. It must not destroy
// the backend: that would mean waiting for itself.
bool is_own_thread(c10d::Backend& gloo);

}  // namespace gradwire::compat
