#include "gradwire/compat/reducer.h"

#include <algorithm>
#include <limits>

namespace gradwire::compat {
namespace {

// Before the order in which gradients become ready is known, everything goes
// into one bucket; it is cut up by that order before the second forward. With
// find_unused_parameters the Reducer never rebuilds, so the caps apply at once.
std::vector<std::vector<std::size_t>> first_buckets(
    const ReducerOptions& options) {
  const bool rebuilds = options.static_graph || !options.find_unused_parameters;
  const auto limits =
      rebuilds
          ? std::vector<std::size_t>{std::numeric_limits<std::size_t>::max()}
          : std::vector<std::size_t>{
                static_cast<std::size_t>(options.first_bucket_bytes),
                static_cast<std::size_t>(options.bucket_bytes)};
  auto indices = std::get<0>(c10d::compute_bucket_assignment_by_size(
      options.parameters, limits, options.sparse));
  std::ranges::reverse(indices);  // backward starts at the last layer
  return indices;
}

}  // namespace

ReducerPair make_reducer(
    const ReducerOptions& options,
    c10::intrusive_ptr<c10d::ProcessGroup> group) {
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& name : options.names) {
    names.emplace(names.size(), name);
  }
  ReducerPair pair;
  pair.reducer = std::make_shared<c10d::Reducer>(
      options.parameters,
      first_buckets(options),
      std::move(group),
      options.sparse,
      options.bucket_bytes,
      options.find_unused_parameters,
      options.gradient_as_bucket_view,
      std::move(names),
      options.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  pair.logger = std::make_shared<c10d::Logger>(pair.reducer);
  pair.reducer->set_logger(pair.logger);
  if (options.static_graph) {
    pair.reducer->set_static_graph();
  }
  return pair;
}

void reset(c10d::Reducer& reducer) {
  reducer.reset_state();
}

}  // namespace gradwire::compat
