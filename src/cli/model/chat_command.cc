#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <unordered_set>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/model/adapter_folders.h"
#include "cli/model/loaded_model.h"
#include "cli/run/threads.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "data/chat/chat_template.h"
#include "data/chat/messages.h"
#include "formats/file_kind.h"
#include "model/llama/generator.h"
#include "model/sampling.h"
#include "settings/choices.h"
#include "settings/compat/compat_flags.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

// Lines of standard input, by read(), which Ctrl-C interrupts.
class LineReader {
 public:
  // nullopt at the end of the input and after Ctrl-C.
  std::optional<std::string> next() {
    for (;;) {
      if (const size_t end = buffer_.find('\n', searched_); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      searched_ = buffer_.size();
      if (std::ssize(buffer_) > kMaxLineBytes)
        fail(ExitCode::kBadData, "standard input: a line of more than {}, expected a message",
             format_bytes(kMaxLineBytes));
      char piece[4096];
      const ssize_t count = ::read(STDIN_FILENO, piece, sizeof(piece));
      if (count < 0 && errno != EINTR)
        fail_errno(ExitCode::kIoError, errno, "standard input: cannot be read");
      if (count > 0) {
        buffer_.append(piece, static_cast<size_t>(count));
      } else if (count < 0 || buffer_.empty()) {
        return std::nullopt;
      } else {
        searched_ = 0;
        return std::exchange(buffer_, {});
      }
    }
  }

 private:
  static constexpr int64_t kMaxLineBytes = int64_t{16} << 20;
  std::string buffer_;
  size_t searched_ = 0;  // bytes of it that hold no line break
};

class ChatCommand : public Command {
 public:
  std::string name() const override { return "chat"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "system", &system_);
    declare(table, "chat_template", &chat_template_);
    declare(table, "max_new_tokens", &max_new_tokens_);
    declare(table, "context_length", &context_length_);
    declare(table, "temperature", &sampling_.temperature);
    declare(table, "top_k", &sampling_.top_k);
    declare(table, "top_p", &sampling_.top_p);
    declare(table, "seed", &seed_);
    declare(table, "adapter", &adapter_);
    declare(table, "dtype", &dtype_, kTrainingDTypeWords);
    declare(table, "device", &device_);
    table->add_foreign_names(compat_hints("inference_hints"));
  }

  void run(FlagTable*) override {
    if (!(sampling_.top_p > 0 && sampling_.top_p <= 1))
      fail(ExitCode::kUsage, "--top_p: expected above 0, at most 1, found {}", sampling_.top_p);
    check_is_model_folder(model_);
    const std::string folder = tokenizer_folder_of(model_, adapter_);
    const Tokenizer tokenizer = Tokenizer::open(folder);
    const ChatTemplate chat_template = ChatTemplate::load(folder, tokenizer, {chat_template_, ""});
    ThreadPool pool(threads_for_products());
    LoadedModel loaded(
        model_, adapter_, dtype_, ops_of_flag(device_), pool, [&](const TrainableModel& model) {
          const int64_t capacity = capacity_of(model.config());
          return LoadedModel::Use{Generator::memory_bytes(model, capacity),
                                  fmt::format("the key-value cache and buffers for {} (--context_length)",
                                              count_of(capacity, "token"))};
        });
    check_vocabulary(tokenizer, loaded.config(), model_);
    Generator generator(loaded.model(), capacity_of(loaded.config()));
    const std::unordered_set<int64_t> ends = ends_of(loaded, tokenizer, chat_template);
    talk(tokenizer, chat_template, ends, capacity_of(loaded.config()), &generator);
  }

 private:
  int64_t capacity_of(const ModelConfig& config) const {
    return std::min(context_length_, config.max_position_embeddings);
  }

  static std::unordered_set<int64_t> ends_of(const LoadedModel& loaded, const Tokenizer& tokenizer,
                                             const ChatTemplate& chat_template) {
    std::unordered_set<int64_t> ends = loaded.end_ids();
    if (tokenizer.eos_id()) ends.insert(*tokenizer.eos_id());
    if (const std::optional<int32_t> end = chat_template.end_of_answer(tokenizer)) ends.insert(*end);
    return ends;
  }

  ChatExample new_conversation() const {
    ChatExample chat;
    if (!system_.empty()) add_message("system", system_, &chat.messages);
    return chat;
  }

  void talk(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
            const std::unordered_set<int64_t>& ends, int64_t capacity, Generator* generator) {
    const InterruptFlag interrupt;
    const bool has_prompt = ::isatty(STDIN_FILENO) == 1;
    if (has_prompt) log_info("Ctrl-C stops an answer; Ctrl-D ends the conversation, /reset begins a new one");
    LineReader lines;
    ChatExample chat = new_conversation();
    for (;;) {
      if (has_prompt) write_output("> ");
      flush_output();
      const std::optional<std::string> line = lines.next();
      if (!line) break;
      if (*line == "/reset" || *line == "/clear") {  // llama.cpp's word
        chat = new_conversation();
        continue;
      }
      if (*line == "/exit" || *line == "/quit") return;
      if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
      add_message("user", *line, &chat.messages);
      const RenderedChat rendered = chat_template.render(chat, {.add_generation_prompt = true});
      std::vector<int32_t> ids;
      std::vector<TokenCut> cuts;
      tokenizer.encode(rendered.text, /*add_special_tokens=*/false,
                       {.cuts = {}, .barriers = rendered.barriers}, &ids, &cuts);
      if (std::ssize(ids) >= capacity) {
        log_warning(
            "the conversation has {}, but the context only {}: /reset begins a new one, --context_length "
            "gives more where the model can",
            count_of(std::ssize(ids), "token"), capacity);
        chat.messages.pop_back();
        continue;
      }
      add_message("assistant", write_answer(tokenizer, ends, capacity, std::move(ids), generator),
                  &chat.messages);
    }
    if (has_prompt) write_output("\n");
  }

  // Writes the answer to the prompt `ids` as it comes, and returns it.
  std::string write_answer(const Tokenizer& tokenizer, const std::unordered_set<int64_t>& ends,
                           int64_t capacity, std::vector<int32_t> ids, Generator* generator) {
    InterruptFlag::take();
    SamplingOptions sampling = sampling_;
    sampling.seed = static_cast<uint64_t>(seed_);
    StreamDecoder decoder(tokenizer);
    std::vector<float> scratch;
    std::string answer;
    const auto write = [&](const std::string& piece) {
      answer += piece;
      write_result(piece);
      flush_output();
    };
    std::span<const float> logits = feed_from_common_prefix(ids, generator);
    bool is_complete = false;
    for (int64_t num_new = 0; num_new < max_new_tokens_ && !InterruptFlag::take(); ++num_new) {
      const int32_t id = sample_token(logits, ids, sampling, num_sampled_++, &scratch);
      is_complete = ends.contains(id);
      if (is_complete) break;
      ids.push_back(id);
      write(decoder.push(id));
      if (generator->length() == capacity) break;
      logits = generator->feed(std::span(&ids.back(), 1));
      fed_.push_back(id);
    }
    write(decoder.finish());
    write_output(is_complete ? "\n" : " ...\n");
    return answer;
  }

  // The cache keeps what both conversations begin with, if that is all it holds.
  std::span<const float> feed_from_common_prefix(const std::vector<int32_t>& ids, Generator* generator) {
    const bool continues = fed_.size() < ids.size() && std::equal(fed_.begin(), fed_.end(), ids.begin());
    if (!continues) {
      generator->reset();
      fed_.clear();
    }
    const std::span<const int32_t> rest = std::span(ids).subspan(fed_.size());
    fed_ = ids;
    return generator->feed(rest);
  }

  std::string model_;
  std::string adapter_;
  std::string system_;
  std::string chat_template_;
  int64_t max_new_tokens_ = 1024;
  int64_t context_length_ = 4096;
  SamplingOptions sampling_;
  int64_t seed_ = 42;
  DType dtype_ = DType::kBF16;
  DeviceKind device_ = DeviceKind::kCpu;
  std::vector<int32_t> fed_;  // what is in the generator's cache
  uint64_t num_sampled_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_chat_command() { return std::make_unique<ChatCommand>(); }

}  // namespace tessera
