// Transport "local": ranks that are threads of one process, no sockets.

#include <unistd.h>

#include <map>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/comm/local_room.h"
#include "gradwire/comm/transport_impl.h"

namespace gradwire {
namespace {

using Bytewise = std::vector<std::int64_t>;

// Rooms of this process by number. Rank 0 of a group opens one and tells the
// others its number through the store.
struct Rooms {
  std::mutex mutex;
  std::map<std::int64_t, std::weak_ptr<LocalRoom>> open;
  std::int64_t next = 0;
};

// Never destroyed: groups may outlive statics.
Rooms& rooms() {
  static auto* all = new Rooms;
  return *all;
}

std::shared_ptr<LocalRoom> open_room(
    const StorePtr& store, const TransportOptions& options) {
  auto room = std::make_shared<LocalRoom>(
      options.origin.group, options.origin.world, options.timeout);
  Rooms& all = rooms();
  const std::lock_guard lock(all.mutex);
  std::erase_if(
      all.open, [](const auto& entry) { return entry.second.expired(); });
  const std::int64_t number = all.next++;
  all.open[number] = room;
  const std::string text = concat(getpid(), " ", number);
  store->set("room", std::vector<std::uint8_t>(text.begin(), text.end()));
  return room;
}

std::shared_ptr<LocalRoom> find_room(const StorePtr& store) {
  store->wait({"room"});
  const auto bytes = store->get("room");
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  pid_t process = 0;
  std::int64_t number = -1;
  text >> process >> number;
  if (!text || process != getpid()) {
    fail(
        "comm",
        "transport 'local' is for ranks that are threads of one process, got "
        "ranks of processes ",
        process,
        " and ",
        getpid());
  }
  Rooms& all = rooms();
  const std::lock_guard lock(all.mutex);
  const auto found = all.open.find(number);
  auto room = found != all.open.end() ? found->second.lock() : nullptr;
  if (!room) {
    throw CommError("rank 0 has left the group");
  }
  return room;
}

// Bytes of each rank's rows; no counts: equal shares.
Bytewise to_bytes(const at::Tensor& tensor, const Bytewise& rows, int world) {
  const auto total = static_cast<std::int64_t>(tensor.nbytes());
  if (rows.empty()) {
    Bytewise equal;
    equal.assign(static_cast<std::size_t>(world), total / world);
    return equal;
  }
  const std::int64_t row =
      tensor.size(0) > 0 ? total / tensor.size(0) : std::int64_t{0};
  Bytewise bytes;
  for (const auto count : rows) {
    bytes.push_back(count * row);
  }
  return bytes;
}

// What it counts as sent is what ranks with connections to all others would
// send: in an all-reduce each one adds up a share of the elements.
class LocalTransport final : public Transport {
 public:
  LocalTransport(
      const TransportOptions& options, std::shared_ptr<LocalRoom> room)
      : Transport(options.origin, options.meter), room_(std::move(room)) {}

  ~LocalTransport() override {
    room_->leave(origin().rank);
  }

  std::chrono::milliseconds timeout() const {
    return room_->timeout();
  }

  c10::Device device() const override {
    return c10::DeviceType::CPU;
  }

  std::int64_t all_reduce_bytes(
      std::int64_t elems, std::int64_t elem_bytes) const override {
    const std::int64_t world = origin().world;
    const std::int64_t own =
        elems / world + (origin().rank < elems % world ? 1 : 0);
    return (elems - own + (world - 1) * own) * elem_bytes;
  }

 protected:
  using Kind = LocalCall::Kind;

  Future start_all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return submit(
        {.kind = Kind::kAllReduce,
         .op = op,
         .input = tensor,
         .output = tensor});
  }
  Future start_broadcast(const at::Tensor& tensor, int root) override {
    return submit(
        {.kind = Kind::kBroadcast,
         .root = root,
         .input = tensor,
         .output = tensor});
  }
  Future start_all_gather(
      const at::Tensor& output, const at::Tensor& input) override {
    return submit({.kind = Kind::kAllGather, .input = input, .output = output});
  }
  Future start_all_to_all(const AllToAll& exchange) override {
    const int world = origin().world;
    return submit(
        {.kind = Kind::kAllToAll,
         .input = exchange.input,
         .output = exchange.output,
         .input_bytes = to_bytes(exchange.input, exchange.input_rows, world),
         .output_bytes =
             to_bytes(exchange.output, exchange.output_rows, world)});
  }
  Future start_barrier() override {
    return submit({.kind = Kind::kBarrier});
  }

  std::int64_t broadcast_bytes(
      int root, std::int64_t buffer_bytes) const override {
    return origin().rank == root ? (origin().world - 1) * buffer_bytes : 0;
  }
  std::int64_t all_gather_bytes(
      std::int64_t contribution_bytes) const override {
    return (origin().world - 1) * contribution_bytes;
  }
  std::int64_t sparse_header_bytes() const override {
    return 0;
  }

 private:
  Future submit(LocalCall call) {
    return room_->submit(origin().rank, std::move(call));
  }

  std::shared_ptr<LocalRoom> room_;
};

std::shared_ptr<Transport> make_local(
    const StorePtr& store, const TransportOptions& options) {
  watchdog::start();
  auto room =
      options.origin.rank == 0 ? open_room(store, options) : find_room(store);
  return std::make_shared<LocalTransport>(options, std::move(room));
}

std::optional<FoundBackend> find_local(const BackendPtr& backend) {
  if (const auto own =
          std::dynamic_pointer_cast<LocalTransport>(transport_of(backend))) {
    return FoundBackend{backend, own->timeout()};
  }
  return std::nullopt;
}

}  // namespace

TransportRow local_transport() {
  return {
      .info = {"local", "threads of one process", {c10::DeviceType::CPU}},
      .wanted = nullptr,
      .one_process = true,
      .make = make_local,
      .find = find_local};
}

}  // namespace gradwire
