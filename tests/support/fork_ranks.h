#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/launch/spawn.h"

namespace gradwire::test {

// Ranks are forked from a template: a process that has loaded Torch and done
// nothing else. Loading it anew takes 0.4 s of processor time a rank.

// Starts the template. Once, by main, before any test and any thread.
void start_template();

struct ForkOptions {
  int n = 0;
  // The test that every rank runs, as a filter.
  std::string test;
  // Set in ranks, beside "rank_variable" for their number.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::string rank_variable;
  std::chrono::milliseconds deadline{0};
  bool end_others_on_failure = true;
};

struct ForkResult {
  std::vector<launch::RankExit> ranks;
  // What each of them printed, errors included.
  std::vector<std::string> output;
  bool deadline_passed = false;
};

// Runs n ranks to their end. Whatever they started ends with them.
ForkResult fork_ranks(const ForkOptions& options);

}  // namespace gradwire::test
