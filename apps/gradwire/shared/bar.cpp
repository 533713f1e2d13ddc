#include "apps/gradwire/shared/bar.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>

namespace gradwire::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWidth = 24;
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr std::int64_t kStepsPerRow = 50;

}  // namespace

Bar::Bar(bool enabled, std::int64_t total_steps, std::int64_t done_steps)
    : enabled_(enabled),
      terminal_(isatty(STDOUT_FILENO)),
      total_(std::max<std::int64_t>(1, total_steps)),
      first_(done_steps),
      started_(Clock::now()),
      drawn_at_(started_) {}

std::string Bar::remaining(std::int64_t step) const {
  const std::chrono::duration<double> spent = Clock::now() - started_;
  const auto done = std::max<std::int64_t>(1, step - first_);
  const double left = spent.count() / static_cast<double>(done) *
                      static_cast<double>(total_ - step);
  const auto seconds = static_cast<long>(left + 0.5);
  std::ostringstream text;
  text << seconds / 60 << ":" << std::setw(2) << std::setfill('0')
       << seconds % 60 << " left";
  return text.str();
}

void Bar::update(std::int64_t step, const std::string& detail) {
  if (!enabled_) {
    return;
  }
  if (!terminal_) {
    if (step % kStepsPerRow == 0 || step == total_) {
      std::cout << "step " << step << "/" << total_ << "  " << detail << "  "
                << remaining(step) << std::endl;
    }
    return;
  }
  if (Clock::now() - drawn_at_ < kRedraw && step != total_) {
    return;
  }
  drawn_at_ = Clock::now();
  drawn_ = true;
  const auto filled = static_cast<int>(kWidth * step / total_);
  std::cout << "\r\033[K" << detail << "  ["
            << std::string(static_cast<std::size_t>(filled), '#')
            << std::string(static_cast<std::size_t>(kWidth - filled), '.')
            << "] " << step << "/" << total_ << "  " << remaining(step)
            << std::flush;
}

void Bar::finish() {
  if (drawn_) {
    std::cout << std::endl;
    drawn_ = false;
  }
}

}  // namespace gradwire::apps
