#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/gradwire/bench/network.h"
#include "apps/gradwire/bench/ranks.h"
#include "apps/gradwire/bench/report.h"

namespace gradwire::apps {

// Runs the turns of a benchmark. One set of ranks holds a DDP for each hook,
// another one PyTorch's; a turn is some steps of one hook in one set, while
// all others wait. Throws CommError when a rank fails.
class Measurement {
 public:
  // Both are canonical specs: of our DDPs, and of PyTorch's with our hooks.
  // none and noop are measured in any case.
  Measurement(
      const BenchOptions& options,
      const std::vector<std::string>& hooks,
      const std::vector<std::string>& attached);

  BenchReport run(const std::vector<Link>& links);

 private:
  using Timeout = std::chrono::milliseconds;

  void add_ours(const std::string& hook, bool hidden);
  void add_peers(const std::vector<std::string>& hooks);
  void add_attached(const std::vector<std::string>& hooks);
  // Ranks on this link, new ones unless those there are can stay.
  void connect(const Link& link);
  RankProgram place(std::vector<std::string> command, int rank, int port);
  std::vector<std::string> rank_command() const;
  void start_ranks(const Link& link);
  void verify(std::size_t turn, const Link& link);
  void take_turn(Series& series, std::size_t turn, const Link& link);
  LinkResult measure(const Link& link, const std::function<void()>& on_turn);

  bool of_peer(std::size_t turn) const {
    return turn >= ours_;
  }
  nlohmann::json ask(
      std::size_t turn, const std::string& verb, int steps, Timeout timeout);
  Timeout timeout(const Link& link, std::size_t steps) const;

  BenchOptions options_;
  BenchReport report_;
  // What was found out about each turn's hook before it was timed.
  std::vector<Series> turns_;
  // As peer.py knows them.
  std::vector<std::string> peer_hooks_;
  // So many of the turns are ours.
  std::size_t ours_ = 0;

  // Outlives the ranks in it.
  std::unique_ptr<ShapedNetwork> network_;
  std::unique_ptr<RankSet> own_ranks_;
  std::unique_ptr<RankSet> peer_ranks_;
  bool on_shaped_link_ = false;
};

}  // namespace gradwire::apps
