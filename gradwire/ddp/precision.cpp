#include "gradwire/ddp/precision.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/ddp/inputs.h"

namespace gradwire {
namespace {

std::string name_of(std::optional<at::ScalarType> type) {
  return type ? concat(*type) : "unset";
}

void check_type(
    const char* option,
    std::optional<at::ScalarType> type,
    std::initializer_list<at::ScalarType> allowed) {
  if (type && std::ranges::find(allowed, *type) == allowed.end()) {
    fail(
        "ddp",
        "precision.",
        option,
        " is ",
        *type,
        ", expected at::kBFloat16",
        allowed.size() > 2 ? ", at::kHalf or at::kFloat" : " or at::kHalf");
  }
}

// Of the hook that casts, which is the name of a codec too.
std::string cast_name(at::ScalarType type) {
  return type == at::kHalf ? "fp16" : "bf16";
}

}  // namespace

std::vector<Fact> inspect_precision(const MixedPrecision& precision) {
  check_type("parameters", precision.parameters, {at::kBFloat16, at::kHalf});
  check_type("reduction", precision.reduction, {at::kBFloat16, at::kHalf});
  check_type(
      "buffers", precision.buffers, {at::kBFloat16, at::kHalf, at::kFloat});
  return {
      {"precision.parameters", name_of(precision.parameters)},
      {"precision.reduction", name_of(precision.reduction)},
      {"precision.buffers", name_of(precision.buffers)},
      {"precision.cast_inputs", concat(precision.cast_inputs)}};
}

std::shared_ptr<Masters> make_masters(
    const Model& model, const MixedPrecision& precision) {
  std::vector<Masters::Tensor> tensors;
  if (const auto type = precision.parameters) {
    for (const auto& parameter : model.trainable) {
      tensors.push_back({parameter->tensor, *type});
    }
    for (const auto& parameter : model.frozen) {
      tensors.push_back({parameter, *type});
    }
  }
  const auto type =
      precision.buffers ? precision.buffers : precision.parameters;
  for (const auto& buffer : model.buffers) {
    if (type) {
      tensors.push_back({buffer, *type, /*is_buffer=*/true});
    }
  }
  return tensors.empty() ? nullptr : std::make_shared<Masters>(tensors);
}

CheckedHook hook_in_type(
    const HookChoice& choice, std::optional<at::ScalarType> type) {
  CheckedHook hook = choice.check();
  if (!type) {
    return hook;
  }
  const std::string cast = cast_name(*type);
  if (!hook.has_spec()) {
    fail(
        "ddp",
        "precision.reduction is ",
        *type,
        " and the hook is '",
        hook.text(),
        "', expected one with a spec: a hook object or lambda says itself in "
        "which type it sends");
  }
  if (hook.is_plain_average()) {
    return CheckedHook(HookSpec(cast));
  }
  const std::string& text = hook.text();
  const bool casts_already = text == cast || text.starts_with(cast + "(") ||
                             text.starts_with(cast + ":");
  return casts_already ? hook
                       : CheckedHook(HookSpec(concat(cast, "(", text, ")")));
}

void detail::cast_floats(
    const std::vector<at::Tensor*>& tensors, at::ScalarType type) {
  for (at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->is_floating_point()) {
      *tensor = tensor->to(type);
    }
  }
}

}  // namespace gradwire
