// What is kept of a ZeroRedundancyOptimizer, in files and elsewhere.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/optim/zero_impl.h"
#include "gradwire/optim/zero_records.h"

namespace gradwire {
namespace {

// Of an owner that keeps its slice in full: that slice, among the tensors of
// the state.
constexpr const char* kFullValues = "gradwire.parameter";

std::string zero_file_of(const std::string& folder, std::int64_t rank) {
  return std::filesystem::path(folder) / concat("zero.rank", rank);
}

std::string describe_parameter(const ZeroParameter& parameter) {
  return concat(
      parameter.tensor().numel(), ' ', parameter.tensor().scalar_type());
}

// One that no other save has. Collective.
std::int64_t draw_zero_save(const Group& group) {
  std::random_device random;
  const auto number = static_cast<std::int64_t>(
      (std::uint64_t{random()} << 32) | std::uint64_t{random()});
  return std::stoll(
      share(group, "the state of ZeroRedundancyOptimizer", concat(number)));
}

ZeroRecords read_zero_records(
    const std::string& folder, const ZeroRecord& expected) {
  ZeroRecords records(expected);
  std::int64_t world = 1;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const std::string path = zero_file_of(folder, rank);
    const std::string where = concat("'", path, "'");
    records.add(decode_zero_record(read_whole(path), where), where);
    world = records.first().world;
  }
  return records;
}

// What the parts of all ranks are, on one of them; empty on the others.
std::vector<std::string> collect_parts(
    const Group& group, const std::string& part, int to) {
  const auto world = static_cast<std::size_t>(group.size());
  const auto bytes = static_cast<std::int64_t>(part.size());
  const at::Tensor size = at::full({1}, bytes, at::kLong);
  const at::Tensor sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, size).wait();
  std::vector<std::int64_t> sent(world);
  std::vector<std::int64_t> received(world);
  sent[static_cast<std::size_t>(to)] = bytes;
  if (group.rank() == to) {
    const auto* each = sizes.const_data_ptr<std::int64_t>();
    received.assign(each, each + world);
  }
  const at::Tensor input = at::empty({bytes}, at::kByte);
  std::memcpy(input.data_ptr(), part.data(), part.size());
  std::int64_t all = 0;
  for (const std::int64_t each : received) {
    all += each;
  }
  const at::Tensor output = at::empty({all}, at::kByte);
  group.all_to_all(output, input, received, sent).wait();
  std::vector<std::string> parts;
  const auto* at = static_cast<const char*>(output.const_data_ptr());
  for (const std::int64_t each : received) {
    parts.emplace_back(at, static_cast<std::size_t>(each));
    at += each;
  }
  return parts;
}

}  // namespace

const OptimizerKind& ZeroRedundancyOptimizer::Impl::known_kind() const {
  if (!kind) {
    fail(
        "optim",
        "the state of this optimizer has no known form: register_optimizer "
        "makes it known");
  }
  return *kind;
}

ParameterState ZeroRedundancyOptimizer::Impl::state_of_slice(
    const ZeroParameter& parameter) const {
  return parameter_state_of(
      *locals[parameter.group()], *kind, parameter.slice());
}

void ZeroRedundancyOptimizer::Impl::set_state_of_slice(
    const ZeroParameter& parameter, const ParameterState& kept) {
  set_parameter_state(
      *locals[parameter.group()],
      *kind,
      parameter.slice(),
      parameter.for_slice(kept));
}

ZeroRecord ZeroRedundancyOptimizer::Impl::record(std::int64_t save) const {
  ZeroRecord record{
      save, known_kind().name, parent.size(), parent.rank(), {}, {}};
  for (const auto& parameter : parameters) {
    const auto description = describe_parameter(*parameter);
    if (!record.parameters.emplace(parameter->name(), description).second) {
      fail(
          "optim",
          "two parameters are called '",
          parameter->name(),
          "', expected different names to save them by");
    }
    if (const auto& run = parameter->run()) {
      ParameterState kept =
          parameter->kept_of_slice(state_of_slice(*parameter));
      if (parameter->keeps_full()) {
        kept.tensors[kFullValues] = parameter->target()->wanted;
      }
      record.pieces[parameter->name()] = {
          run->first, run->elems, std::move(kept)};
    }
  }
  return record;
}

void ZeroRedundancyOptimizer::save(const std::string& folder) const {
  const std::int64_t save = draw_zero_save(impl_->parent);
  agree_checked(impl_->parent, "saving a ZeroRedundancyOptimizer", [&] {
    const std::string bytes = encode_zero_record(impl_->record(save));
    check_writable_folder(folder);
    write_atomically(zero_file_of(folder, impl_->parent.rank()), bytes);
    return std::vector<Fact>{};
  });
}

// Where owners kept slices in full and do not any more, these are what the
// parameters become.
void ZeroRedundancyOptimizer::load(const std::string& folder) {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  std::vector<ParameterState> kept(impl.parameters.size());
  bool was_encoded = false;
  agree_checked(impl.parent, "loading a ZeroRedundancyOptimizer", [&] {
    const ZeroRecord expected = impl.record(0);
    const ZeroRecords records = read_zero_records(folder, expected);
    for (std::size_t i = 0; i < impl.parameters.size(); ++i) {
      impl.parameters[i]->follow();
      if (const auto& run = impl.parameters[i]->run()) {
        kept[i] =
            records.find(impl.parameters[i]->name(), run->first, run->elems);
        ParameterState state = kept[i];
        state.tensors.erase(kFullValues);
        impl.known_kind().make(state);
      }
    }
    for (const auto& [name, piece] : records.first().pieces) {
      was_encoded |= piece.state.tensors.contains(kFullValues);
    }
    return std::vector<Fact>{
        {"world of the save", concat(records.first().world)},
        {"save", concat(records.first().save)}};
  });
  for (std::size_t i = 0; i < impl.parameters.size(); ++i) {
    ZeroParameter& parameter = *impl.parameters[i];
    if (!parameter.run()) {
      continue;
    }
    if (const auto found = kept[i].tensors.find(kFullValues);
        found != kept[i].tensors.end()) {
      flat_memory(parameter.slice()).copy_(found->second);
      kept[i].tensors.erase(found);
    } else if (parameter.keeps_full()) {
      parameter.reset_full();
    }
    impl.set_state_of_slice(parameter, kept[i]);
  }
  if (was_encoded && !impl.encoded) {
    impl.roll_call->named(impl.spreader->start(*impl.all)).wait();
    impl.note_written();
  }
}

OptimizerState ZeroRedundancyOptimizer::consolidate(int rank) const {
  const at::NoGradGuard no_grad;
  const Impl& impl = *impl_;
  std::string part;
  agree_checked(impl.parent, "consolidate", [&] {
    if (rank < 0 || rank >= impl.parent.size()) {
      fail(
          "optim",
          "consolidate got rank ",
          rank,
          ", expected 0 to ",
          impl.parent.size() - 1);
    }
    part = encode_zero_record(impl.record(0));
    return std::vector<Fact>{{"rank", concat(rank)}};
  });
  const auto parts = collect_parts(impl.group, part, rank);
  OptimizerState state{impl.known_kind().name, {}};
  if (impl.parent.rank() != rank) {
    return state;
  }
  const ZeroRecord expected = impl.record(0);
  ZeroRecords records(expected);
  for (const std::string& each : parts) {
    records.add(decode_zero_record(each, "of a rank"), "of a rank");
  }
  for (const auto& parameter : impl.parameters) {
    const std::int64_t elems = parameter->tensor().numel();
    ParameterState whole = records.find(parameter->name(), 0, elems);
    whole.tensors.erase(kFullValues);
    state.parameters.push_back(parameter->for_whole(whole));
  }
  return state;
}

void ZeroRedundancyOptimizer::load_state(const OptimizerState& state) {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  std::vector<ParameterState> kept(impl.parameters.size());
  agree_checked(impl.parent, "load_state", [&] {
    if (state.optimizer != impl.known_kind().name) {
      fail(
          "optim",
          "got the state of ",
          state.optimizer,
          ", expected that of ",
          impl.kind->name);
    }
    if (state.parameters.size() != impl.parameters.size()) {
      fail(
          "optim",
          "got the state of ",
          state.parameters.size(),
          " parameters, expected ",
          impl.parameters.size());
    }
    for (std::size_t i = 0; i < impl.parameters.size(); ++i) {
      const ZeroParameter& parameter = *impl.parameters[i];
      const ZeroPiece whole{
          0,
          parameter.tensor().numel(),
          parameter.kept_of_whole(state.parameters[i])};
      if (const auto& run = parameter.run()) {
        kept[i] =
            assemble_pieces(parameter.name(), {&whole}, run->first, run->elems);
        impl.kind->make(kept[i]);
      }
    }
    return std::vector<Fact>{{"optimizer", state.optimizer}};
  });
  for (std::size_t i = 0; i < impl.parameters.size(); ++i) {
    if (impl.parameters[i]->run()) {
      impl.set_state_of_slice(*impl.parameters[i], kept[i]);
    }
  }
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive&) const {
  fail(
      "optim",
      "an archive would hold the state of one rank: save(folder) and "
      "consolidate() are for the state of all");
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive&) {
  fail(
      "optim",
      "an archive has the state of all ranks or of another one: load(folder) "
      "and load_state() are for what save(folder) and consolidate() gave");
}

}  // namespace gradwire
