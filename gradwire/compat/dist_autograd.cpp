#include "gradwire/compat/dist_autograd.h"

#include <torch/csrc/distributed/autograd/context/container.h>

namespace gradwire::compat {
namespace {

using Container = torch::distributed::autograd::DistAutogradContainer;

// Access to a private member: the arguments of an explicit instantiation are
// not checked for it.
struct Initialized {
  friend bool Container::*member_of(Initialized);
};
template <class Tag, bool Container::*Member>
struct Expose {
  friend bool Container::*member_of(Tag) {
    return Member;
  }
};
template struct Expose<Initialized, &Container::initialized_>;

}  // namespace

void start_dist_autograd(int worker) {
  try {
    Container::init(worker);
  } catch (const c10::Error&) {
    // It was another worker before.
    Container::getInstance().*member_of(Initialized()) = false;
    Container::init(worker);
  }
}

}  // namespace gradwire::compat
