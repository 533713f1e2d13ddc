#include "gradwire/rpc/rendezvous.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};

template <class What>
std::string store_key(const std::string& topic, const What& what) {
  return concat("rpc/", topic, "/", what);
}

}  // namespace

Rendezvous::Rendezvous(StorePtr store, int rank, int world)
    : store_(std::move(store)), rank_(rank), world_(world) {}

template <class Work>
auto Rendezvous::guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    throw CommError(
        concat(
            "[gradwire.rpc] the store of the workers is lost: ",
            first_line(e.what())),
        {.rank = rank_});
  }
}

std::string Rendezvous::get(const std::string& key) {
  const auto bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

void Rendezvous::set(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

bool Rendezvous::leave(const std::string& topic, const std::string& text) {
  return guarded([&] {
    set(store_key(topic, rank_), text);
    if (store_->add(store_key(topic, "count"), 1) < world_) {
      return false;
    }
    std::string all;
    for (int rank = 0; rank < world_; ++rank) {
      all += get(store_key(topic, rank)) + '\n';
    }
    set(store_key(topic, "all"), all);
    return true;
  });
}

std::vector<int> Rendezvous::missing(const std::string& topic) {
  return guarded([&] {
    std::vector<int> result;
    for (int rank = 0; rank < world_; ++rank) {
      if (!store_->check({store_key(topic, rank)})) {
        result.push_back(rank);
      }
    }
    return result;
  });
}

std::vector<int> Rendezvous::wait(
    const std::string& topic,
    Clock::time_point deadline,
    const Waiting& waiting) {
  const std::vector<std::string> all{store_key(topic, "all")};
  for (milliseconds next = kFirstPause;;
       next = std::min(2 * next, waiting.longest_pause)) {
    if (guarded([&] { return store_->check(all); })) {
      return {};
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds(0)) {
      return missing(topic);
    }
    if (waiting.pause) {
      waiting.pause(std::min(next, left));
    } else {
      std::this_thread::sleep_for(std::min(next, left));
    }
  }
}

std::vector<std::string> Rendezvous::read(const std::string& topic) {
  std::istringstream all(guarded([&] { return get(store_key(topic, "all")); }));
  std::vector<std::string> result;
  for (std::string line; std::getline(all, line);) {
    result.push_back(line);
  }
  if (result.size() != static_cast<std::size_t>(world_)) {
    fail(
        "rpc",
        "the store has ",
        result.size(),
        " texts of workers, expected ",
        world_);
  }
  return result;
}

}  // namespace gradwire::rpc
