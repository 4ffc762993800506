#include "data/chat/modelfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/file.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

Modelfile modelfile_of(const std::string& chat_template) {
  const TestFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    folder.write(name, read_text_file(data_folder() / "tokenizers" / "llama3_pattern" / name));
  if (!chat_template.empty()) folder.write("chat_template.jinja", chat_template);
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  return ollama_modelfile("m.gguf", folder.path(), tokenizer, {633, *tokenizer.eos_id()});
}
std::string modelfile_with(const std::string& chat_template) { return modelfile_of(chat_template).text; }

TEST(OllamaModelfile, HasTheTemplateThatGivesTheModelsTexts) {
  const std::string chatml = modelfile_with(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
  EXPECT_THAT(chatml, testing::StartsWith(
                          "FROM ./m.gguf\nTEMPLATE \"\"\"{{- range .Messages }}<|im_start|>{{ .Role }}"));
  EXPECT_THAT(chatml, HasSubstr("PARAMETER stop \"<|begin_of_text|>\"\n"));
  // Ollama puts the beginning of a text itself.
  const std::string llama = modelfile_with(
      "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + "
      "m.content + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}");
  EXPECT_THAT(llama,
              HasSubstr("<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>"));
}

TEST(OllamaModelfile, SaysWhatIsMissingForOtherTemplates) {
  // A default system message would be lost.
  const std::string other = modelfile_with(
      "{% if messages[0].role != 'system' %}<|im_start|>system\nHi<|im_end|>\n{% endif %}{% for m in "
      "messages %}{{ "
      "'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{% if "
      "add_generation_prompt %}{{ "
      "'<|im_start|>assistant\\n' }}{% endif %}");
  EXPECT_THAT(other, HasSubstr("\n# The chat template is in the GGUF file"));
  EXPECT_THAT(other, Not(HasSubstr("\nTEMPLATE")));
  EXPECT_THAT(modelfile_with(""), HasSubstr("\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n"));
}

TEST(OllamaModelfile, SaysWhatItLacks) {
  const std::string chatml =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  EXPECT_EQ(modelfile_of(chatml).warning, "");
  const Modelfile with_tools =
      modelfile_of("{% if tools %}<|im_start|>system\n{{ tools }}<|im_end|>\n{% endif %}" + chatml);
  EXPECT_THAT(with_tools.text, HasSubstr("\nTEMPLATE \"\"\"{{- range .Messages }}<|im_start|>"));
  EXPECT_THAT(with_tools.text, HasSubstr("\n# Without the chat template's form for tools"));
  EXPECT_THAT(with_tools.warning, HasSubstr("no form for tools"));
  EXPECT_THAT(modelfile_of("{{ messages[0].content }}").warning, HasSubstr("no TEMPLATE"));
  EXPECT_EQ(modelfile_of("").warning, "");
}

}  // namespace
}  // namespace tessera
