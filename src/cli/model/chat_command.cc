#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/model/model_command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/chat/chat_template.h"
#include "data/chat/messages.h"
#include "inference/text_generator.h"

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

class ChatCommand : public ModelCommand {
 public:
  std::string name() const override { return "chat"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "system", &system_);
    declare(table, "chat_template", &chat_template_);
    declare(table, "max_new_tokens", &max_new_tokens_);
    declare(table, "context_length", &context_length_);
    declare_sampling(table);
    declare(table, "seed", &seed_);
    declare_model(table);
  }

  void run(FlagTable*) override {
    const SamplingOptions options = sampling();
    const ModelFolders parts = folders();
    const Tokenizer tokenizer = Tokenizer::open(parts.tokenizer);
    const ChatTemplate chat_template = ChatTemplate::load(parts.tokenizer, tokenizer, {chat_template_, ""});
    ThreadPool pool(threads_for_products());
    const auto capacity_of = [&](const ModelConfig& config) {
      return std::min(context_length_, config.max_position_embeddings);
    };
    LoadedModel loaded =
        load_for_texts(parts, tokenizer, pool, single_process(), capacity_of, "context_length");
    std::unordered_set<int64_t> ends = loaded.end_ids();
    if (tokenizer.eos_id()) ends.insert(*tokenizer.eos_id());
    if (const std::optional<int32_t> end = chat_template.end_of_answer(tokenizer)) ends.insert(*end);
    const int64_t capacity = capacity_of(loaded.config());
    TextGenerator generator(tokenizer, loaded.model(), capacity, options, ends);
    talk(tokenizer, chat_template, capacity, &generator);
  }

 private:
  ChatExample new_conversation() const {
    ChatExample chat;
    if (!system_.empty()) add_message("system", system_, &chat.messages);
    return chat;
  }

  void talk(const Tokenizer& tokenizer, const ChatTemplate& chat_template, int64_t capacity,
            TextGenerator* generator) {
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
      InterruptFlag::take();
      const Continuation answer = generator->continue_text(
          std::move(ids), max_new_tokens_,
          [](const std::string& piece) {
            write_result(piece);
            flush_output();
          },
          InterruptFlag::take);
      write_output(answer.has_ended ? "\n" : " ...\n");
      add_message("assistant", answer.text, &chat.messages);
    }
    if (has_prompt) write_output("\n");
  }

  std::string system_;
  std::string chat_template_;
  int64_t max_new_tokens_ = 1024;
  int64_t context_length_ = 4096;
};

}  // namespace

std::unique_ptr<Command> make_chat_command() { return std::make_unique<ChatCommand>(); }

}  // namespace tessera
