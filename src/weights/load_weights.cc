#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/float_types.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/convert.h"
#include "formats/huggingface/model_families.h"
#include "tensor/shape_text.h"
#include "weights/load_meter.h"
#include "weights/model_folder.h"
#include "weights/weight_names.h"

namespace tessera {
namespace {

using Location = SafetensorsModel::Location;
// 256 KiB of BF16: still in the core's cache when it is checked, even if ranks share a core.
constexpr int64_t kPieceElements = int64_t{1} << 17;
// Bytes announced for readahead: enough to keep several requests in flight on a disk.
constexpr int64_t kAnnouncedBytes = int64_t{64} << 20;

// A unit of reading: for the sink, or for comparison with the tied embedding.
struct Piece {
  size_t tensor;
  int64_t begin;
  int64_t count;
};

struct Tensor {
  std::string name;
  Location location;
  int64_t offset = 0;  // in the flat array
  int64_t num_elements = 0;
  const Parameter* parameter = nullptr;
  // Must hold the same values; this is not loaded itself.
  const WeightEntry* equal = nullptr;
  int64_t first_element = 0;  // in the file's tensor
};

// The shape in terms of config.json's fields, for messages.
std::string_view shape_formula(const std::string& name) {
  constexpr std::array<std::array<std::string_view, 2>, 35> kFormulas = {{
      {"qkv_proj.weight", "[(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size]"},
      {"gate_up_proj.weight", "[2 * intermediate_size, hidden_size]"},
      {"shared.weight", "[vocab_size, d_model]"},
      {"Attention.q.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.k.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.v.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.o.weight", "[d_model, num_heads * d_kv]"},
      {"relative_attention_bias.weight", "[relative_attention_num_buckets, num_heads]"},
      {"wi.weight", "[d_ff, d_model]"},
      {"wi_0.weight", "[d_ff, d_model]"},
      {"wi_1.weight", "[d_ff, d_model]"},
      {"wo.weight", "[d_model, d_ff]"},
      {"embed_tokens.weight", "[vocab_size, hidden_size]"},
      {"lm_head.weight", "[vocab_size, hidden_size]"},
      {"q_proj.weight", "[num_attention_heads * head_dim, hidden_size]"},
      {"k_proj.weight", "[num_key_value_heads * head_dim, hidden_size]"},
      {"v_proj.weight", "[num_key_value_heads * head_dim, hidden_size]"},
      {"o_proj.weight", "[hidden_size, num_attention_heads * head_dim]"},
      {"q_proj.bias", "[num_attention_heads * head_dim]"},
      {"k_proj.bias", "[num_key_value_heads * head_dim]"},
      {"v_proj.bias", "[num_key_value_heads * head_dim]"},
      {"q_norm.weight", "[head_dim]"},
      {"k_norm.weight", "[head_dim]"},
      {"experts.gate_up_proj", "[num_experts, 2 * moe_intermediate_size, hidden_size]"},
      {"experts.down_proj", "[num_experts, hidden_size, moe_intermediate_size]"},
      {"mlp.gate.weight", "[num_experts, hidden_size]"},
      {"block_sparse_moe.gate.weight", "[num_local_experts, hidden_size]"},
      {"w1.weight", "[intermediate_size, hidden_size]"},
      {"w2.weight", "[hidden_size, intermediate_size]"},
      {"w3.weight", "[intermediate_size, hidden_size]"},
      {"gate_proj.weight", "[intermediate_size, hidden_size]"},
      {"up_proj.weight", "[intermediate_size, hidden_size]"},
      {"down_proj.weight", "[hidden_size, intermediate_size]"},
      {"gate_proj.bias", "[intermediate_size]"},
      {"up_proj.bias", "[intermediate_size]"},
  }};
  if (name.find(".experts.") != name.npos && name.ends_with("_proj.weight"))
    return name.ends_with("down_proj.weight") ? "[hidden_size, moe_intermediate_size]"
                                              : "[moe_intermediate_size, hidden_size]";
  for (const auto& [suffix, formula] : kFormulas) {
    if (name.ends_with(suffix)) return formula;
  }
  return "[hidden_size]";
}

std::string where(const SafetensorsModel& model) {
  const std::filesystem::path& first = model.files().front()->path();
  return model.files().size() == 1 ? first.native() : first.parent_path().native();
}

// The file that says which tensors there are.
const char* description(const ModelConfig& config) {
  return config.lora ? kAdapterConfigName : "config.json";
}

[[noreturn]] void fail_missing(const SafetensorsModel& model, const ModelConfig& config,
                               const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name == kLmHeadName)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected since tie_word_embeddings is false in config.json, found none (set it to "
         "true if the model shares its embeddings)",
         where(model), name);
  fail(ExitCode::kBadData, "{}: tensor '{}': expected by {}, found none among its {}", where(model), name,
       description(config), count_of(std::ssize(model.tensors()), "tensor"));
}

void check_tensor(const Parameter& parameter, const Location& location) {
  const SafetensorsEntry& entry = *location.entry;
  const std::string& file = location.file->path().native();
  if (entry.shape != parameter.shape)
    fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {} = {} of config.json, found {}", file,
         parameter.name, shape_text(parameter.shape), shape_formula(parameter.name), shape_text(entry.shape));
  if (!can_convert(entry.dtype, DType::kF32))
    fail(ExitCode::kBadData, "{}: tensor '{}': expected BF16, F16, F32 or F64, found {}", file,
         parameter.name, dtype_name(entry.dtype));
}

// The part of the model that a tensor would belong to: a decoder layer, or a module.
std::string part_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t end = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : name.rfind('.');
  return name.substr(0, end == name.npos ? end : end + 1);
}

// Transformers ignores tensors that the model does not have; most families refuse them. One of a layer or
// module that it has means that config.json describes another model: the values would be wrong.
void check_others(const std::vector<const WeightEntry*>& others, const ModelConfig& config,
                  const ParameterLayout& layout) {
  for (const WeightEntry* other : others) {
    const std::string part = part_of(model_name_of(other->first));
    const auto is_part = [&](const Parameter& parameter) { return parameter.name.starts_with(part); };
    if (!config.lora && !family_info(config.family).refuses_unknown_fields &&
        std::ranges::none_of(layout.parameters(), is_part))
      continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': not part of the model that {} describes",
         other->second.file->path().native(), printable(other->first), description(config));
  }
  if (others.empty()) return;
  log_warning_once(fmt::format("{}: {} ('{}'{}) not part of the model that {} describes: ignored",
                               others.front()->second.file->path().native(),
                               count_of(std::ssize(others), "tensor"), printable(others.front()->first),
                               others.size() > 1 ? ", ..." : "", description(config)));
}

// Every tensor to read. Checks that the files have all tensors of the model.
std::vector<Tensor> plan_tensors(const SafetensorsModel& model, const ModelConfig& config,
                                 const ParameterLayout& layout) {
  std::vector<Tensor> tensors;
  std::set<const WeightEntry*> used;
  for (const Parameter& parameter : layout.parameters()) {
    const WeightEntry* found = find_weight(model, config, parameter.name);
    const std::optional<FusedPlace> fused = found == nullptr ? fused_place(config, parameter) : std::nullopt;
    if (fused) found = find_weight(model, config, fused->name);
    if (found == nullptr) fail_missing(model, config, parameter);
    Parameter in_file = parameter;
    if (fused) in_file.name = fused->name;
    if (fused) in_file.shape = fused->shape;
    check_tensor(in_file, found->second);
    tensors.push_back({parameter.name, found->second, parameter.offset, parameter.num_elements, &parameter,
                       /*equal=*/nullptr, fused ? fused->first_element : 0});
    used.insert(found);
  }
  std::vector<const WeightEntry*> others;
  for (const WeightEntry& entry : model.tensors()) {
    if (used.contains(&entry) || is_left_over(entry.first, config)) continue;
    if (!repeats_embedding(entry.first, config)) {
      others.push_back(&entry);
      continue;
    }
    const Parameter& embedding = layout.parameters().front();
    Parameter copy = embedding;
    copy.name = entry.first;
    check_tensor(copy, entry.second);
    tensors.push_back({entry.first, entry.second, embedding.offset, embedding.num_elements, &embedding,
                       find_weight(model, config, embedding.name)});
  }
  check_others(others, config, layout);
  return tensors;
}

int64_t element_bytes(const Tensor& tensor) { return dtype_bytes(tensor.location.entry->dtype); }

// Adds the parts of a tensor that lie in the ranges, in pieces.
void add_pieces(const std::vector<Tensor>& tensors, size_t index, std::span<const ElementRange> ranges,
                std::vector<Piece>* pieces) {
  const Tensor& tensor = tensors[index];
  const int64_t tensor_end = tensor.offset + tensor.num_elements;
  const auto ends_before = [](const ElementRange& range, int64_t offset) { return range.end <= offset; };
  auto range = std::lower_bound(ranges.begin(), ranges.end(), tensor.offset, ends_before);
  for (; range != ranges.end() && range->begin < tensor_end; ++range) {
    const int64_t end = std::min(range->end, tensor_end) - tensor.offset;
    for (int64_t begin = std::max(range->begin, tensor.offset) - tensor.offset; begin < end;
         begin += kPieceElements) {
      pieces->push_back({index, begin, std::min(kPieceElements, end - begin)});
    }
  }
}

// In file order, so that a disk is read sequentially.
std::vector<Piece> plan_pieces(std::vector<Tensor>& tensors, std::span<const ElementRange> ranges) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    const auto key = [](const Tensor& tensor) {
      return std::tuple(tensor.location.file->path().native(), tensor.location.entry->offset_bytes,
                        tensor.first_element);
    };
    return key(a) < key(b);
  });
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) add_pieces(tensors, i, ranges, &pieces);
  return pieces;
}

void read_piece(const Location& location, int64_t begin, std::span<float> values) {
  location.file->read(*location.entry, begin,
                      TensorView(values.data(), DType::kF32, {static_cast<int64_t>(values.size())}));
}

int64_t count_non_finite(std::span<const float> values) {
  int64_t count = 0;
  for (const float value : values) count += is_finite(value) ? 0 : 1;
  return count;
}

// Infinities and NaN have all exponent bits set. A first loop only detects them, 64 bytes at a time, at the
// speed of the cache; they are counted only if there are any.
int64_t count_non_finite(std::span<const bf16> values) {
  using Lanes [[gnu::vector_size(16)]] = uint16_t;
  constexpr uint16_t kExponent = 0x7F80;
  constexpr uint16_t kLastExponentBit = 0x0080;
  constexpr size_t kNumLanes = sizeof(Lanes) / sizeof(uint16_t);
  const auto is_bad = [](bf16 value) { return !is_finite(value); };
  // An all-ones exponent carries into bit 15.
  const auto marks = [](const bf16* at) {
    Lanes lanes;
    std::memcpy(&lanes, at, sizeof(lanes));
    return (lanes & kExponent) + kLastExponentBit;
  };
  Lanes even = {}, odd = {};
  const bf16* at = values.data();
  const bf16* const end = at + values.size();
  for (; end - at >= 4 * static_cast<ptrdiff_t>(kNumLanes); at += 4 * kNumLanes) {
    even |= marks(at) | marks(at + 2 * kNumLanes);
    odd |= marks(at + kNumLanes) | marks(at + 3 * kNumLanes);
  }
  bool any = std::any_of(at, end, is_bad);
  for (size_t lane = 0; lane < kNumLanes; ++lane) any = any || ((even[lane] | odd[lane]) & 0x8000) != 0;
  return any ? std::count_if(values.begin(), values.end(), is_bad) : 0;
}

void check_equal(const Tensor& tensor, int64_t begin, std::span<const float> found,
                 std::span<const float> expected) {
  // Equal bits count too: check_finite reports a NaN in both.
  const auto same = [](float a, float b) {
    return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  const auto [at, other] = std::mismatch(found.begin(), found.end(), expected.begin(), same);
  if (at == found.end()) return;
  if (tensor.name != kLmHeadName)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected the values of {}, found {} instead of {} at element {}",
         tensor.location.file->path().native(), tensor.name, tensor.equal->first, *at, *other,
         begin + (at - found.begin()));
  fail(ExitCode::kBadData,
       "{}: tensor '{}': expected the values of {} since tie_word_embeddings is true in config.json, found "
       "{} instead of {} at element {} (Transformers uses both: set it to false)",
       tensor.location.file->path().native(), tensor.name, tensor.equal->first, *at, *other,
       begin + (at - found.begin()));
}

void check_finite(const std::vector<Tensor>& tensors, const std::vector<std::atomic<int64_t>>& non_finite) {
  int64_t total = 0, bad_tensors = 0;
  const Tensor* first = nullptr;
  int64_t first_count = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = non_finite[i].load();
    if (count == 0) continue;
    if (first == nullptr) {
      first = &tensors[i];
      first_count = count;
    }
    total += count;
    ++bad_tensors;
  }
  if (first == nullptr) return;
  fail(ExitCode::kBadData, "{}: tensor '{}': expected finite weights, found {} of {} NaN or infinite{}",
       first->location.file->path().native(), first->name, format_count(first_count),
       format_count(first->num_elements),
       bad_tensors == 1 ? "" : fmt::format(" ({} in {} tensors in all)", format_count(total), bad_tensors));
}

// Keeps kAnnouncedBytes announced for readahead, counted from the piece that a thread is starting.
class Announcer {
 public:
  Announcer(const std::vector<Tensor>& tensors, const std::vector<Piece>& pieces)
      : tensors_(tensors), pieces_(pieces) {}

  void begin(size_t piece) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // another thread is doing it
    while (next_ < pieces_.size() && (next_ <= piece || ahead(piece) < kAnnouncedBytes)) announce(next_++);
  }

 private:
  int64_t bytes_of(const Piece& piece) const { return piece.count * element_bytes(tensors_[piece.tensor]); }

  int64_t ahead(size_t piece) {
    for (; passed_ < piece; ++passed_) passed_bytes_ += bytes_of(pieces_[passed_]);
    return announced_bytes_ - passed_bytes_;
  }

  void announce(size_t index) {
    const Piece& piece = pieces_[index];
    const Location& location = tensors_[piece.tensor].location;
    location.file->announce(*location.entry, tensors_[piece.tensor].first_element + piece.begin, piece.count);
    announced_bytes_ += bytes_of(piece);
  }

  const std::vector<Tensor>& tensors_;
  const std::vector<Piece>& pieces_;
  std::mutex mutex_;
  size_t next_ = 0;
  size_t passed_ = 0;
  int64_t announced_bytes_ = 0;
  int64_t passed_bytes_ = 0;
};

// Reads pieces; owns its buffers.
class PieceReader {
 public:
  PieceReader(const WeightSink& sink, const Bf16Destination& bf16_destination, bool adds_up)
      : sink_(sink), bf16_destination_(bf16_destination), adds_up_(adds_up) {}

  const ValueSums& sums() const { return sums_; }

  // Returns the number of values that are not finite.
  int64_t read(const Tensor& tensor, const Piece& piece) {
    if (bf16_destination_ && tensor.equal == nullptr && tensor.location.entry->dtype == DType::kBF16) {
      return read_in_place(tensor, piece);
    }
    const size_t count = static_cast<size_t>(piece.count);
    values_.resize(count);
    read_piece(tensor.location, tensor.first_element + piece.begin, values_);
    if (tensor.equal != nullptr) {
      others_.resize(count);
      read_piece(tensor.equal->second, piece.begin, others_);
      check_equal(tensor, piece.begin, values_, others_);
      return 0;
    }
    sink_(tensor.offset + piece.begin, values_);
    if (adds_up_) sums_.add(*tensor.parameter, piece.begin, std::span<const float>(values_));
    return count_non_finite(std::span<const float>(values_));
  }

 private:
  int64_t read_in_place(const Tensor& tensor, const Piece& piece) {
    int64_t num_non_finite = 0;
    for (int64_t begin = piece.begin, end = piece.begin + piece.count; begin < end;) {
      const std::span<bf16> values = bf16_destination_(tensor.offset + begin, end - begin);
      const int64_t count = std::ssize(values);
      TESSERA_CHECK(0 < count && count <= end - begin, "{}: memory for {} of {} elements", tensor.name, count,
                    end - begin);
      tensor.location.file->read(*tensor.location.entry, tensor.first_element + begin,
                                 TensorView(values.data(), DType::kBF16, {count}));
      num_non_finite += count_non_finite(std::span<const bf16>(values));
      if (adds_up_) sums_.add(*tensor.parameter, begin, std::span<const bf16>(values));
      begin += count;
    }
    return num_non_finite;
  }

  const WeightSink& sink_;
  const Bf16Destination& bf16_destination_;
  const bool adds_up_;
  ValueSums sums_;
  std::vector<float> values_, others_;
};

}  // namespace

void load_weights(const SafetensorsModel& model, const ModelConfig& config, const ParameterLayout& layout,
                  const WeightSink& sink, ThreadPool& pool, const LoadOptions& options) {
  std::vector<Tensor> tensors = plan_tensors(model, config, layout);
  const ElementRange everything = {0, layout.num_elements()};
  const std::vector<Piece> pieces = plan_pieces(tensors, options.ranges.value_or(std::span(&everything, 1)));
  std::vector<std::atomic<int64_t>> non_finite(tensors.size());
  int64_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.count * element_bytes(tensors[piece.tensor]);
  LoadMeter progress(total_bytes, options.progress);
  Announcer announcer(tensors, pieces);
  // Threads take the pieces in order, so that the files are read front to back.
  std::atomic<size_t> next = 0;
  std::mutex sums_mutex;
  pool.parallel_for(pool.num_threads(), [&](int64_t /*reader*/) {
    PieceReader reader(sink, options.bf16_destination, options.sums != nullptr);
    for (size_t index = next++; index < pieces.size(); index = next++) {
      const Piece& piece = pieces[index];
      const Tensor& tensor = tensors[piece.tensor];
      announcer.begin(index);
      non_finite[piece.tensor] += reader.read(tensor, piece);
      progress.add(piece.count * element_bytes(tensor));
    }
    if (options.sums == nullptr) return;
    const std::lock_guard lock(sums_mutex);
    *options.sums += reader.sums();
  });
  check_finite(tensors, non_finite);
}

}  // namespace tessera
