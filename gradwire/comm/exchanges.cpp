#include "gradwire/comm/exchanges.h"

#include <algorithm>

namespace gradwire {

Future Exchanges::start(Lane& lane, const Call& call, Exchange::Use use) {
  use.noise =
      codec::Noise::make({call.number, static_cast<unsigned>(rank_ + 1)});
  use.owner_noise = codec::Noise::make({call.number, 0});
  return find_or_plan(call).start(lane, std::move(use));
}

Exchange& Exchanges::find_or_plan(const Call& call) {
  const auto found = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return kept.codec == call.codec && kept.segments == call.segments &&
           kept.exchange->idle();
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.push_front(
        {call.codec,
         call.segments,
         std::make_unique<Exchange>(
             call.codec, Exchange::Layout{rank_, world_, call.segments})});
    drop_unused();
  }
  return *kept_.front().exchange;
}

void Exchanges::drop_unused() {
  std::int64_t bytes = 0;
  for (const Kept& kept : kept_) {
    bytes += kept.exchange->kept_bytes();
  }
  for (auto kept = std::prev(kept_.end());
       bytes > most_bytes_ && kept != kept_.begin();) {
    const auto older = kept--;
    if (older->exchange->idle()) {
      bytes -= older->exchange->kept_bytes();
      kept_.erase(older);
    }
  }
}

}  // namespace gradwire
