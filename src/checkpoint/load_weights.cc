#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "formats/convert.h"

namespace tessera {
namespace {

using Location = SafetensorsModel::Location;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kLmHead = "lm_head.weight";
// 1 MiB of float32: large enough for a disk's full speed, and two such buffers per thread are nothing.
constexpr int64_t kPieceElements = int64_t{1} << 18;

// What a piece of work reads: into the sink, or to be compared with the tied embedding.
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
  const Location* equal = nullptr;  // must hold the same values and is not loaded itself
};

// How config.json gives the shape, for messages.
std::string_view shape_formula(const std::string& name) {
  constexpr std::array<std::array<std::string_view, 2>, 16> kFormulas = {{
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
      {"gate_proj.weight", "[intermediate_size, hidden_size]"},
      {"up_proj.weight", "[intermediate_size, hidden_size]"},
      {"down_proj.weight", "[hidden_size, intermediate_size]"},
      {"gate_proj.bias", "[intermediate_size]"},
      {"up_proj.bias", "[intermediate_size]"},
  }};
  for (const auto& [suffix, formula] : kFormulas) {
    if (name.ends_with(suffix)) return formula;
  }
  return "[hidden_size]";
}

std::string where(const SafetensorsModel& model) {
  const std::filesystem::path& first = model.files().front()->path();
  return model.files().size() == 1 ? first.native() : first.parent_path().native();
}

[[noreturn]] void fail_missing(const SafetensorsModel& model, const std::string& name) {
  if (name == kLmHead)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected since tie_word_embeddings is false in config.json, found none (set it to "
         "true if the model shares its embeddings)",
         where(model), name);
  fail(ExitCode::kBadData, "{}: tensor '{}': expected by config.json, found none among its {} tensors",
       where(model), name, model.tensors().size());
}

void check_tensor(const Parameter& parameter, const Location& location) {
  const SafetensorsEntry& entry = *location.entry;
  const std::string& file = location.file->path().native();
  if (entry.shape != parameter.shape)
    fail(ExitCode::kBadData, "{}: tensor '{}': expected shape [{}] = {} of config.json, found [{}]", file,
         parameter.name, fmt::join(parameter.shape, ", "), shape_formula(parameter.name),
         fmt::join(entry.shape, ", "));
  if (!can_convert(entry.dtype, DType::kF32))
    fail(ExitCode::kBadData, "{}: tensor '{}': expected BF16, F16, F32 or F64, found {}", file,
         parameter.name, dtype_name(entry.dtype));
}

// Every tensor to be read; all of the model's own are there and nothing else is.
std::vector<Tensor> plan_tensors(const SafetensorsModel& model, const ModelConfig& config,
                                 const ParameterLayout& layout) {
  std::vector<Tensor> tensors;
  for (const Parameter& parameter : layout.parameters()) {
    const auto at = model.tensors().find(parameter.name);
    if (at == model.tensors().end()) fail_missing(model, parameter.name);
    check_tensor(parameter, at->second);
    tensors.push_back({parameter.name, at->second, parameter.offset, parameter.num_elements});
  }
  for (const auto& [name, location] : model.tensors()) {
    // Old versions of transformers saved the rotary frequencies, which follow from config.json.
    if (layout.find(name) != nullptr || name.ends_with("rotary_emb.inv_freq")) continue;
    if (name == kLmHead && config.tie_word_embeddings) {
      const Parameter& embedding = layout.at(kEmbedding);
      Parameter lm_head = embedding;
      lm_head.name = kLmHead;
      check_tensor(lm_head, location);
      tensors.push_back({name, location, 0, embedding.num_elements, &model.tensors().at(kEmbedding)});
      continue;
    }
    fail(ExitCode::kBadData, "{}: tensor '{}': not part of the model that config.json describes",
         location.file->path().native(), printable(name));
  }
  return tensors;
}

// In the order of the files, so that a disk is read from front to back.
std::vector<Piece> plan_pieces(std::vector<Tensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    const auto key = [](const Tensor& tensor) {
      return std::pair(tensor.location.file->path().native(), tensor.location.entry->offset_bytes);
    };
    return key(a) < key(b);
  });
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t begin = 0; begin < tensors[i].num_elements; begin += kPieceElements)
      pieces.push_back({i, begin, std::min(kPieceElements, tensors[i].num_elements - begin)});
  }
  return pieces;
}

void read_piece(const Location& location, int64_t begin, std::span<float> values) {
  location.file->read(*location.entry, begin,
                      TensorView(values.data(), DType::kF32, {static_cast<int64_t>(values.size())}));
}

int64_t count_non_finite(std::span<const float> values) {
  int64_t count = 0;
  for (const float value : values) count += std::isfinite(value) ? 0 : 1;
  return count;
}

void check_equal(const Tensor& tensor, int64_t begin, std::span<const float> found,
                 std::span<const float> expected) {
  // By bits as well: a NaN in both is for check_finite to report.
  const auto same = [](float a, float b) {
    return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  const auto [at, other] = std::mismatch(found.begin(), found.end(), expected.begin(), same);
  if (at == found.end()) return;
  fail(ExitCode::kBadData,
       "{}: tensor '{}': expected the values of {} since tie_word_embeddings is true in config.json, found "
       "{} instead of {} at element {}",
       tensor.location.file->path().native(), tensor.name, kEmbedding, *at, *other,
       begin + (at - found.begin()));
}

// Adds up what the threads have read; the callback is called by one at a time.
class Progress {
 public:
  Progress(int64_t total, const std::function<void(double)>& report) : total_(total), report_(report) {}

  void add(int64_t count) {
    if (!report_) return;
    const std::lock_guard lock(mutex_);
    done_ += count;
    report_(static_cast<double>(done_) / static_cast<double>(total_));
  }

 private:
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t total_;
  const std::function<void(double)>& report_;
};

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

}  // namespace

void load_weights(const SafetensorsModel& model, const ModelConfig& config, const ParameterLayout& layout,
                  const WeightSink& sink, ThreadPool& pool,
                  const std::function<void(double fraction)>& progress) {
  std::vector<Tensor> tensors = plan_tensors(model, config, layout);
  const std::vector<Piece> pieces = plan_pieces(tensors);
  std::vector<std::atomic<int64_t>> non_finite(tensors.size());
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.num_elements;
  Progress done(total, progress);
  struct Scratch {
    std::vector<float> values, others;
  };
  std::vector<Scratch> scratch(static_cast<size_t>(pool.num_threads()));
  pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    const Tensor& tensor = tensors[piece.tensor];
    Scratch& buffers = scratch[static_cast<size_t>(ThreadPool::thread_index())];
    buffers.values.resize(static_cast<size_t>(piece.count));
    read_piece(tensor.location, piece.begin, buffers.values);
    if (tensor.equal != nullptr) {
      buffers.others.resize(static_cast<size_t>(piece.count));
      read_piece(*tensor.equal, piece.begin, buffers.others);
      check_equal(tensor, piece.begin, buffers.values, buffers.others);
    } else {
      non_finite[piece.tensor] += count_non_finite(buffers.values);
      sink(tensor.offset + piece.begin, buffers.values);
    }
    done.add(piece.count);
  });
  check_finite(tensors, non_finite);
}

}  // namespace tessera
