#pragma once

// Private to ddp: one DDP under a Join.

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/engine.h"

namespace gradwire {

struct JoinOptions;

// Before every forward and before the first gradient of a backward, ranks with
// input say so in an all-reduce of one number a rank; ranks without put a zero
// there, read what the others do, and do the same with zeros. DDPs have
// control groups of their own and need not happen in the same order on all
// ranks.
class JoinedDdp {
 public:
  // Collective over the engine's group.
  JoinedDdp(DdpEngine& engine, const JoinOptions& options);

  enum class Event : std::int64_t {
    kForward = 1,
    kLocalForward = 2,  // inside no_sync
    kBackward = 3,
  };
  struct Roster {
    // Ranks that have input.
    int active = 0;
    // The highest of them.
    int lead = 0;
    std::optional<Event> event;
  };

  // By a rank with input. Throws Error when ranks do different things, or one
  // has no input and that is meant to be an error.
  Roster announce(Event event);
  // By a rank without: mirrors the others until none has input.
  void mirror();
  // Others that wait for this rank fail at once.
  void close();

  bool divides_by_active() const {
    return divides_by_active_;
  }

 private:
  Roster exchange(std::int64_t own);
  void follow(const Roster& roster);
  void warn_when_long();
  Group control();

  DdpEngine& engine_;
  const int rank_;
  const int world_;
  bool divides_by_active_;
  bool throws_;

  std::mutex control_mutex_;
  Group control_;
  // The last roster with somebody in it.
  std::optional<Roster> last_;
  std::int64_t mirrored_ = 0;
};

}  // namespace gradwire
