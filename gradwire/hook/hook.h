#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/options.h"
#include "gradwire/comm/future.h"
#include "gradwire/comm/group.h"
#include "gradwire/hook/bucket.h"
#include "gradwire/hook/report.h"
#include "gradwire/hook/step.h"

namespace gradwire {

// What a hook remembers from step to step on one rank.
struct HookState {
  // Equal on all ranks. Names are the same at every step.
  std::map<std::string, std::int64_t> numbers;
  // By parameter, equal on all ranks.
  std::map<std::string, at::Tensor> shared;
  // By parameter: what this rank still owes to the sum over ranks, in the order
  // of the gradient's memory. In another world they may be handed to other
  // ranks and added up, and to another hook when hooks are exchanged.
  std::map<std::string, at::Tensor> residuals;
};

// The policy between "this bucket of gradients is ready" and "every rank holds
// the same average". One instance serves one DDP. Its calls come one at a time,
// with the same buckets in the same order on every rank, so a hook needs no
// lock of its own. A hook around another one passes on begin_step and end_step,
// and any subset of the buckets between them.
class Hook {
 public:
  virtual ~Hook() = default;

  // Before the first bucket of a step.
  virtual void begin_step(const Step&) {}

  // Returns at once; the Future holds what becomes the gradient: a tensor of
  // the buffer's element count, usually the buffer itself, reduced in place.
  // What is thrown here surfaces in backward().
  virtual Future reduce(Bucket& bucket) = 0;

  // When every bucket's Future is complete, however it ended, and at the latest
  // before the next call other than reduce(). The outcome is kApplied or
  // kFailed; a hook that knows of an average that is not finite makes it
  // kNotFinite.
  virtual void end_step(Step&) {}

  // Whether end_step() works with the parameters' `.grad`, which then has the
  // averages: also on a rank that only takes part in the step of others.
  virtual bool needs_gradients() const {
    return false;
  }

  // The bucket layout changed: drop what was kept by bucket index.
  virtual void rebuild() {}

  // Between two iterations, and not collective. A hook that is loaded goes on
  // as the one that was saved would have.
  virtual void save(HookState&) {}
  virtual void load(const HookState&) {}
  // Before load(): throws Error for a state that is not one that this hook
  // saves for these parameters. Changes nothing.
  virtual void check(const HookState&, const Parameters&) const {}

  // What the hook in use before still owed (see HookState), for this one to
  // send; between two iterations and not collective. False: it has no feedback,
  // and what was owed is lost.
  virtual bool take_residuals(const std::map<std::string, at::Tensor>&) {
    return false;
  }

  // Of the parameters in buckets that it has compressed: only hooks that treat
  // them differently have something to say. Between two iterations, and not
  // collective.
  virtual std::vector<ParameterReport> report() const {
    return {};
  }

 private:
  friend class CheckedHook;
  // The one that this object serves, while it lives.
  std::weak_ptr<const void> user_;
};

// What a hook is made from.
struct HookContext {
  Group group;
  Options options;
  // Makes the hook in parentheses; null if there is none.
  std::function<std::unique_ptr<Hook>(const Group&)> make_inner;
};

// One row of the registry: everything the CLI, the docs, the benchmark and the
// conformance suite need to know about a hook.
struct HookInfo {
  // kAverage: all ranks end with the same average. kLocal: every rank keeps
  // its own gradients.
  enum class Result { kAverage, kLocal };
  // Whether it takes another hook in parentheses.
  enum class Wraps { kNever, kOptionally, kAlways };

  std::string name;
  std::string summary;
  std::function<std::unique_ptr<Hook>(HookContext)> make;
  std::vector<Option> options = {};
  Result result = Result::kAverage;
  // Largest error of the average relative to the largest gradient element.
  // 0: exact up to the rounding of the sum. Infinite: it depends on the
  // gradients, and a world of one loses too.
  double tolerance = 0.0;
  Wraps wraps = Wraps::kNever;
  // Around another hook it takes no options.
  bool plain_around = false;
  // Options with which the first step does what later ones do, for tests: the
  // conformance suite adds them to the name.
  std::string trial = {};
  // Does exactly what the Reducer does by itself. DDP then lets it, as long as
  // no other hook was in use: scaling while copying saves a pass over memory.
  bool plain_average = false;
  // Throws Error for options that exclude each other.
  std::function<void(const Options&)> check = {};
};

}  // namespace gradwire
