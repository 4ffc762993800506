#include "cli/program/manual_page.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/help_text.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

// Characters that troff would interpret, or turn into typographic ones that cannot be copied into a shell.
std::string troff_text(const std::string& text, bool dashes) {
  static const std::map<char, const char*> kNames = {
      {'\\', "\\e"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_flag = text[i] == '-' && (text.compare(i, 2, "--") == 0 || (i > 0 && text[i - 1] == '-'));
    const auto name = kNames.find(text[i]);
    if (is_flag || (dashes && text[i] == '-')) {
      out += "\\-";
    } else {
      out += name != kNames.end() ? name->second : std::string(1, text[i]);
    }
  }
  return out;
}

// A line that begins with a dot would be a request.
std::string troff_line(const std::string& text) { return (text.starts_with('.') ? "\\&" : "") + text + "\n"; }

// `code` in the text becomes bold; "\n" begins a paragraph.
std::string troff_paragraphs(const std::string& text, const char* separator = ".PP\n") {
  constexpr int64_t kWidth = 78;
  std::string marked;
  bool in_code = false;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find('`', i), text.size());
    marked += troff_text(text.substr(i, end - i), in_code);
    if (end < text.size()) marked += std::exchange(in_code, !in_code) ? "\\fR" : "\\fB";
    i = end + 1;
  }
  std::string out;
  for (size_t i = 0; i < marked.size();) {
    const size_t end = std::min(marked.find('\n', i), marked.size());
    if (!out.empty()) out += separator;
    const std::string wrapped = wrap_text(marked.substr(i, end - i), 0, kWidth);
    for (size_t at = 0; at < wrapped.size();) {
      const size_t next = wrapped.find('\n', at);
      out += troff_line(wrapped.substr(at, next - at));
      at = next + 1;
    }
    i = end + 1;
  }
  return out;
}

// Names of settings must not be hyphenated, nor lines stretched between them.
std::string page_header(const std::string& name, const std::string& summary) {
  std::string title = name;
  std::ranges::transform(title, title.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return fmt::format(
      ".\\\" Written by `tessera help --man`.\n.TH {} 1 \"\" \"tessera {}\" \"Tessera\"\n.nh\n.ad l\n.SH "
      "NAME\n"
      "{} \\- {}\n",
      troff_text(title, true), TESSERA_VERSION, troff_text(name, true), troff_text(summary, false));
}

std::string flag_paragraph(const Flag& flag) {
  const std::string left = troff_text(flag_left_side(flag), true);
  const size_t space = std::min(left.find(' '), left.size());
  const std::string remarks = flag_remarks(flag);
  const std::string text = flag.help + choices_sentence(flag) + (remarks.empty() ? "" : " " + remarks);
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}", left.substr(0, space), left.substr(space),
                     troff_paragraphs(text, ".br\n"));
}

std::string unsupported_section(const FlagTable& table, FlagStatus status, const char* heading) {
  std::string out;
  for (const Flag* flag : with_status(table, status)) {
    const std::string name = flag->default_text.empty()
                                 ? flag->name
                                 : fmt::format("{}\\fR (default {})", flag->name, flag->default_text);
    out += fmt::format(".TP\n\\fB\\-\\-{}\\fR\n{}", name, troff_paragraphs(flag->note));
  }
  return out.empty() ? "" : fmt::format(".SS {}\n", heading) + out;
}

std::string examples_section(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = ".SH EXAMPLES\n.EX\n";
  for (const std::string& each : lines) out += troff_line(troff_text(each, true));
  return out + ".EE\n";
}

struct Variable {
  const char* name;
  const char* meaning;
};

constexpr Variable kVariables[] = {
    {"OMP_NUM_THREADS", "Compute threads of a process, unless a flag gives them."},
    {"TESSERA_ISA",
     "Limits the instruction sets in use, as in TESSERA_ISA=avx2; `tessera doctor` lists them."},
    {"XDG_CACHE_HOME", "Tokenized datasets are cached in its subfolder tessera; ~/.cache without it."},
    {"HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE", "The Hugging Face Hub, as in huggingface_hub."},
    {"NO_COLOR", "No colours, if it is not empty."},
};

}  // namespace

std::string manual_page_name(const Command& command) {
  std::string name = "tessera-" + command.name();
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string manual_page(Command* command) {
  FlagTable table;
  command->declare_flags(&table);
  std::string out = page_header(manual_page_name(*command), command->summary());
  out += fmt::format(".SH SYNOPSIS\n\\fBtessera {}\\fR {}\n", troff_text(command->name(), true),
                     troff_text(command->usage(), true));
  out += ".SH DESCRIPTION\n" +
         troff_paragraphs(command->description().empty() ? command->summary() + "." : command->description());
  out += ".SH OPTIONS\n";
  std::string section;
  for (const Flag* flag : with_status(table, FlagStatus::kHonoured)) {
    if (flag->section != section) {
      section = flag->section;
      if (section != "Options") out += fmt::format(".SS {}\n", troff_text(section, false));
    }
    out += flag_paragraph(*flag);
  }
  out += unsupported_section(table, FlagStatus::kIgnored, "Accepted without effect");
  out += unsupported_section(table, FlagStatus::kRefused, "Refused unless given their default");
  out += examples_section(command->examples());
  return out + ".SH SEE ALSO\n.BR tessera (1)\n";
}

std::string manual_page_of_program(const Commands& all) {
  std::string out = page_header("tessera", "train Llama-family language models on processors");
  out +=
      ".SH SYNOPSIS\n\\fBtessera\\fR \\fICOMMAND\\fR [flags]\n.br\n\\fBtessera help\\fR "
      "\\fICOMMAND\\fR\n.br\n"
      "\\fBtessera \\-\\-version\\fR [\\fB\\-\\-json\\fR]\n.SH DESCRIPTION\n";
  out += troff_paragraphs(
      "Tessera trains and fine-tunes Llama-family language models on the processors of ordinary servers, one "
      "machine or many. It reads a Hugging Face model folder and text, and writes a Hugging Face model "
      "folder.\n"
      "Flags are written --with_under_scores or --with-dashes, values follow as `--flag value` or "
      "`--flag=value`, booleans also as `--flag` and `--no_flag`.");
  out += ".SH COMMANDS\n";
  for (const auto& command : all) {
    out += fmt::format(".TP\n.BR {} (1)\n{}", troff_text(manual_page_name(*command), true),
                       troff_paragraphs(command->summary()));
  }
  out += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_code_meanings()) {
    out += fmt::format(".TP\n.B {}\n{}\n", code, meaning);
  }
  out += ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : kVariables) {
    out += fmt::format(".TP\n.B {}\n{}", name, troff_paragraphs(meaning));
  }
  return out;
}

}  // namespace tessera
