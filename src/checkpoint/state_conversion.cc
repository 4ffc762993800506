#include "checkpoint/state_conversion.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "optim/optimizer.h"

namespace tessera {
namespace {

// The number of values of a tensor that are stored for a parameter, counted from its first element.
int64_t num_stored(const CheckpointCatalog& catalog, const Parameter& parameter, size_t part) {
  int64_t found = 0;
  for (const Extent& extent : catalog.parameters.at(parameter.name).state[part]) {
    if (extent.begin == found) found = extent.end;
  }
  return found;
}

// The tensors that lack values for this parameter.
std::vector<std::string_view> missing_tensors(const CheckpointCatalog& catalog, const Parameter& parameter,
                                              StateTensors tensors) {
  std::vector<std::string_view> missing;
  for (const StateTensor& tensor : tensors) {
    if (!tensor.may_lack && num_values_of(tensor, parameter) > 0 && !find_origin(catalog, parameter, tensor))
      missing.push_back(tensor.name);
  }
  return missing;
}

// "resume with --optim muon, or start a new run from its weights: --model FOLDER".
std::string way_out(const CheckpointCatalog& catalog, const ParameterLayout& layout) {
  std::vector<std::string_view> forms;
  for (const auto& [name, form] : choice_words(OptimizerForm())) {
    if (name != word_of(form)) continue;
    const StateTensors tensors = make_optimizer({.form = form})->state_tensors();
    const auto has_all = [&](const Parameter& parameter) {
      return missing_tensors(catalog, parameter, tensors).empty();
    };
    if (std::ranges::all_of(layout.parameters(), has_all)) forms.push_back(name);
  }
  const std::string resume =
      forms.empty() ? "" : fmt::format("resume with --optim {}, or ", fmt::join(forms, ", "));
  return fmt::format("{}start a new run from its weights: --model {}", resume, catalog.folder.native());
}

int significant_bits(DType state) { return is_block_code(state) ? 4 : state == DType::kBF16 ? 8 : 24; }

std::string loss_text(DType from, DType to) {
  if (significant_bits(to) >= significant_bits(from)) return " (exactly)";
  return fmt::format(" (rounded to {} significant bits)", significant_bits(to));
}

// Describes the conversion of the tensor, the same for all parameters without values of it; "" if none.
std::string change_of(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                      const StateTensor& tensor) {
  for (const Parameter& parameter : layout.parameters()) {
    const std::optional<StateOrigin> origin =
        num_values_of(tensor, parameter) > 0 ? find_origin(catalog, parameter, tensor) : std::nullopt;
    if (!origin) continue;
    const std::string& stored = catalog.parts.prefix(origin->part);
    if (stored != tensor.name)
      return fmt::format("{} from {}{}", tensor.name, origin->is_mean ? "means of " : "", stored);
    const DType dtype = *catalog.parts.dtype(origin->part);
    if (dtype != tensor.dtype)
      return fmt::format("{} from {} to {}{}", tensor.name, dtype_name(dtype), dtype_name(tensor.dtype),
                         loss_text(dtype, tensor.dtype));
  }
  return "";
}

// Describes the values of the part that are left out; "" if there are none.
std::string left_out(const CheckpointCatalog& catalog, const ParameterLayout& layout, StateTensors tensors,
                     size_t part) {
  int64_t num_used = 0, num_left_out = 0;
  bool are_hidden = true;
  for (const Parameter& parameter : layout.parameters()) {
    if (num_stored(catalog, parameter, part) == 0) continue;
    const bool is_used = std::ranges::any_of(tensors, [&](const StateTensor& tensor) {
      if (num_values_of(tensor, parameter) == 0) return false;
      const std::optional<StateOrigin> origin = find_origin(catalog, parameter, tensor);
      return origin && origin->part == part;
    });
    (is_used ? num_used : num_left_out) += 1;
    if (!is_used) are_hidden = are_hidden && shape_of(parameter).is_hidden;
  }
  if (num_left_out == 0) return "";
  const char* const of = num_used == 0 ? "" : are_hidden ? " of the layers' matrices" : " of some parameters";
  return fmt::format("without {}{}", catalog.parts.prefix(part), of);
}

std::vector<float> means_of(const std::vector<double>& sums, int64_t count) {
  std::vector<float> means(sums.size());
  std::ranges::transform(sums, means.begin(),
                         [&](double sum) { return static_cast<float>(sum / static_cast<double>(count)); });
  return means;
}

}  // namespace

int64_t num_values_of(const StateTensor& tensor, const Parameter& parameter) {
  return num_values(tensor.extent, shape_of(parameter), parameter.num_elements);
}

std::optional<StateOrigin> find_origin(const CheckpointCatalog& catalog, const Parameter& parameter,
                                       const StateTensor& tensor) {
  const std::optional<size_t> own = catalog.parts.find(tensor.name);
  if (own && num_stored(catalog, parameter, *own) >= num_values_of(tensor, parameter)) return {{*own}};
  if (tensor.converted_from.empty()) return std::nullopt;
  const std::optional<size_t> other = catalog.parts.find(tensor.converted_from);
  if (!other || num_stored(catalog, parameter, *other) < parameter.num_elements) return std::nullopt;
  return {{*other, tensor.extent == StateExtent::kRows || tensor.extent == StateExtent::kColumns}};
}

// An optimizer may keep a tensor for some parameters only, another one for others.
void check_origins(const CheckpointCatalog& catalog, const ParameterLayout& layout, StateTensors tensors) {
  for (const Parameter& parameter : layout.parameters()) {
    const std::vector<std::string_view> missing = missing_tensors(catalog, parameter, tensors);
    if (missing.empty()) continue;
    std::vector<std::string_view> expected, found;
    for (const StateTensor& tensor : tensors) {
      if (!tensor.may_lack && num_values_of(tensor, parameter) > 0) expected.push_back(tensor.name);
    }
    for (size_t part = StoredParts::kFirstTensor; part < catalog.parts.count(); ++part) {
      if (is_of_optimizer(catalog.parts.prefix(part)) && num_stored(catalog, parameter, part) > 0)
        found.push_back(catalog.parts.prefix(part));
    }
    // The names are a file's, the rest is not to be cut.
    const std::string found_text =
        found.empty()
            ? "none"
            : fmt::format("{}, from which {} cannot be computed",
                          printable(fmt::format("{}", fmt::join(found, ", "))), fmt::join(missing, " and "));
    fail(ExitCode::kBadConfig,
         "{}: optimizer state: expected {} of '{}' for the optimizer to be used, found {}; {}",
         catalog.folder.native(), fmt::join(expected, ", "), printable(parameter.name), found_text,
         way_out(catalog, layout));
  }
}

std::string conversion_text(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                            StateTensors tensors) {
  std::vector<std::string> changes;
  for (const StateTensor& tensor : tensors) changes.push_back(change_of(catalog, layout, tensor));
  for (size_t part = StoredParts::kFirstTensor; part < catalog.parts.count(); ++part) {
    if (!is_of_optimizer(catalog.parts.prefix(part))) continue;
    changes.push_back(left_out(catalog, layout, tensors, part));
  }
  std::erase(changes, "");
  return fmt::format("{}", fmt::join(changes, ", "));
}

MatrixMeans::MatrixMeans(int64_t rows, int64_t columns)
    : row_sums_(static_cast<size_t>(rows)), column_sums_(static_cast<size_t>(columns)) {}

void MatrixMeans::add(std::span<const float> values) {
  while (!values.empty()) {
    double& row_sum = row_sums_[static_cast<size_t>(num_added_ / num_columns())];
    const int64_t first = num_added_ % num_columns();
    const int64_t count = std::min(num_columns() - first, std::ssize(values));
    double sum = row_sum;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<double>(values[static_cast<size_t>(i)]);
      sum += value;
      column_sums_[static_cast<size_t>(first + i)] += value;
    }
    row_sum = sum;
    num_added_ += count;
    values = values.subspan(static_cast<size_t>(count));
  }
}

std::vector<float> MatrixMeans::of_rows() const { return means_of(row_sums_, num_columns()); }

std::vector<float> MatrixMeans::of_columns() const { return means_of(column_sums_, std::ssize(row_sums_)); }

}  // namespace tessera
