#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/base/bytes.h"
#include "gradwire/comm/group.h"
#include "gradwire/hook/hook_record.h"
#include "gradwire/optim/named_tensor.h"

namespace gradwire {

struct DiLoCoOptions {
  // Inner steps from one outer step to the next.
  std::int64_t period = 32;
  // Of the outer optimizer, SGD with Nesterov momentum.
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  // How differences are averaged: the spec of a hook, such as "int4".
  std::string average = "allreduce";
  // Parameters are exchanged in so many parts of about equal size, evenly
  // spread over the period.
  std::int64_t fragments = 1;
  // Inner steps that go on while a fragment is on its way; up to
  // period / fragments.
  std::int64_t delay = 0;
  // What share of its own value a parameter keeps when a fragment arrives,
  // from 0 to 1. Only with a delay: without one there is nothing to keep.
  double mix = 0;
};

// What a DiLoCo has done so far on this rank.
struct DiLoCoStats {
  // Inner steps.
  std::int64_t steps = 0;
  // Of fragments.
  std::int64_t outer_steps = 0;
  // The first rank's parameters at the start included.
  Bytes sent = {};
};

// Ranks train by themselves, with any optimizer and no average of gradients.
// All share an anchor. Every `period` steps the differences anchor - parameter
// are averaged over ranks, a step of an outer optimizer moves the anchor by the
// average, and parameters go on from there. The anchor is the same on all
// ranks, bit for bit, whatever the hook loses on the way; and so are parameters
// after an outer step, as long as `mix` is 0.
//
// Fragment k of F is sent after steps n with n mod period = k * period / F and
// arrives `delay` steps later. What its parameters have learned in between is
// forgotten, but for the share `mix`.
//
// It is given the parameters that the inner optimizer steps: of floats, with
// the same names and sizes on all ranks. Not thread safe. Its calls are
// collective, but for those that only read. Arguments that are wrong, or differ
// between ranks, are an Error on every rank. When an exchange fails, its outer
// step is left out, and what it would have changed is as it was.
class DiLoCo {
 public:
  // Begins with the first rank's parameters, on all ranks.
  DiLoCo(
      const Group& group,
      const NamedTensorList& parameters,
      const DiLoCoOptions& options = {});
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;

  // After every step of the inner optimizer, on all ranks.
  void step();
  // Waits for a fragment that is on its way, and replaces parameters by their
  // exact average where ranks have different ones: for the end of training.
  // Training may go on afterwards.
  void finish();

  // What all ranks have alike. Views of what the next outer step changes, in
  // fp32 at least.
  NamedTensorList anchor() const;
  DiLoCoStats stats() const;

  // Everything to go on with the same bits: anchor, momentum, what the hook
  // remembers, steps, and this rank's parameters. The inner optimizer is not in
  // it. One file a rank, as with DistributedDataParallel::save_hook_state;
  // waits for a fragment that is on its way. In another world ranks share the
  // anchor and the momentum, and take the first rank's parameters.
  void save(const std::string& folder);
  void load(const std::string& folder);
  // The same without files, for a world of the same size.
  HookRecord state();
  void set_state(const HookRecord& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
