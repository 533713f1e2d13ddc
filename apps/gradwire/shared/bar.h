#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gradwire::apps {

// Progress on standard output: one line redrawn on a terminal, a row now and
// then in a file or pipe. Draws nothing when it is not `enabled`.
class Bar {
 public:
  Bar(bool enabled, std::int64_t total_steps, std::int64_t done_steps);

  // `detail` goes in front, such as "epoch 1/2 loss 0.53 812 samples/s".
  void update(std::int64_t step, const std::string& detail);
  // Ends the line, so that other output can follow.
  void finish();

 private:
  std::string remaining(std::int64_t step) const;

  bool enabled_;
  bool terminal_;
  bool drawn_ = false;
  std::int64_t total_;
  std::int64_t first_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point drawn_at_;
};

}  // namespace gradwire::apps
