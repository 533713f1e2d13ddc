#pragma once

// Private to comm: the table of transports and what a row is made of.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>

#include "gradwire/comm/transport.h"
#include "gradwire/comm/transports.h"

namespace gradwire {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct TransportOptions {
  Origin origin;
  std::chrono::milliseconds timeout{};
  // The network interface to bind ("eth0"); empty: bind `address`.
  std::string interface;
  // A local address; empty: whatever the host name resolves to.
  std::string address;
  // A backend of others whose connections are made like these, found by
  // TransportRow::find; null: as above.
  BackendPtr like;
  std::shared_ptr<ByteMeter> meter;
};

// A backend of others that a transport can be made like.
struct FoundBackend {
  BackendPtr backend;
  std::chrono::milliseconds timeout{};
};

struct TransportRow {
  TransportInfo info;
  // What a process group needs for a group beside it, and how to get it:
  // "a Gloo backend for the cpu: make it with ...". Null: nobody has one.
  const char* wanted;
  // All ranks are in one process.
  bool one_process = false;
  // Meets the other ranks through the store and connects. Collective.
  std::shared_ptr<Transport> (*make)(
      const StorePtr& store, const TransportOptions& options);
  // Looks into a backend of others; nothing when it is of another kind.
  std::optional<FoundBackend> (*find)(const BackendPtr& backend);
};

// All rows, the default first.
const std::vector<TransportRow>& transport_rows();
// Throws Error with the names there are.
const TransportRow& find_transport(const std::string& name);

// A transport as c10d's Reducer wants it, and the one inside of such a backend,
// null when it is of others.
BackendPtr make_backend(std::shared_ptr<Transport> transport);
std::shared_ptr<Transport> transport_of(const BackendPtr& backend);

}  // namespace gradwire
