#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gradwire/launch/child.h"

namespace gradwire::apps {

struct RankProgram {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
};

// Ranks that wait for commands on their standard input and answer each with a
// line of JSON behind kBenchAnswer. They die with this process. Not thread
// safe.
class RankSet {
 public:
  // `name` stands in errors: "gradwire", "PyTorch".
  RankSet(std::string name, const std::vector<RankProgram>& programs);
  // Lets the ranks end by themselves for a while, then ends them.
  ~RankSet();
  RankSet(const RankSet&) = delete;

  // Every rank's answer, by rank. Throws CommError that names the rank when
  // one ends or none comes in time; the set is of no use afterwards.
  std::vector<nlohmann::json> ask(
      const std::string& command, std::chrono::milliseconds timeout);

  // Stopped ranks use no core while another set is measured.
  void stop();
  void go_on();

 private:
  struct Rank {
    pid_t pid = 0;
    Fd in;
    Fd out;
    Fd err;
    // Not yet a whole line.
    std::string pending;
    std::string errors;
    bool ended = false;
    int status = 0;
  };

  bool take_answer(Rank& rank, nlohmann::json& answer);
  void pump(std::chrono::milliseconds wait);
  void check_alive();
  void signal_all(int signal);
  void kill_all();

  std::string name_;
  std::vector<Rank> ranks_;
};

}  // namespace gradwire::apps
