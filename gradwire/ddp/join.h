#pragma once

#include <memory>
#include <vector>

#include "gradwire/ddp/ddp.h"

namespace gradwire {

struct JoinOptions {
  // On: what ranks without input left out counts as zero, and every average is
  // one over all ranks. Off: averages are over the ranks that still have input.
  bool divide_by_initial_world_size = true;
  // As soon as one rank has no more input all ranks throw an Error, in their
  // next forward or backward, or in finish().
  bool throw_on_early_termination = false;
};

struct Fact;
class JoinedDdp;

// Lets ranks run out of input at different times: a rank that is done goes on
// to take part in the others' averages, with gradients of zero, until all are.
// Then all have the parameters and buffers of the last one. Not its optimizer's
// state, unless that is overlapped (optimizer_overlap.h): one with momentum
// must be synchronised by the program before ranks train on together.
//
//   {
//     gradwire::Join join(ddp);
//     for (auto& batch : *loader) { ... }
//   }
//
// Collective, and so is its end. Between the two hooks are neither exchanged,
// saved nor loaded, and every forward and backward of the DDPs costs a small
// collective more. The DDPs must outlive it.
class Join {
 public:
  template <class... Ms>
  explicit Join(const DistributedDataParallel<Ms>&... ddps)
      : Join(JoinOptions(), ddps...) {}
  template <class... Ms>
  Join(const JoinOptions& options, const DistributedDataParallel<Ms>&... ddps)
      : Join(std::vector<DdpEngine*>{&ddps->engine()...}, options) {}
  Join(const std::vector<DdpEngine*>& engines, const JoinOptions& options);
  // As finish(), unless an exception is on its way: then others are left to
  // notice that this rank is gone.
  // NOLINTNEXTLINE(bugprone-exception-escape): as finish() does
  ~Join() noexcept(false);
  Join(const Join&) = delete;

  // This rank has no more input. Returns when no rank has.
  void finish();

 private:
  std::vector<Fact> facts_of(
      const DdpEngine& engine, const JoinOptions& options) const;
  void release_engines();
  void detach();

  std::vector<DdpEngine*> engines_;
  std::vector<std::shared_ptr<JoinedDdp>> joined_;
  int exceptions_before_;
};

}  // namespace gradwire
