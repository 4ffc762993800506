#include "cli/model/modelfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/model/model_card.h"
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

// By gguf-py's Metadata.id_to_title().
TEST(GgufName, IsATitle) {
  EXPECT_EQ(title_of("tiny-llama-v1.1-7b-chat"), "Tiny Llama v1.1 7b Chat");
  EXPECT_EQ(title_of("Qwen2.5-0.5B-instruct"), "Qwen2.5 0.5B Instruct");
  EXPECT_EQ(title_of("qwen2.5--coder_base"), "Qwen2.5 Coder_Base");
  EXPECT_EQ(title_of("vicuna-v1.-x"), "Vicuna V1. X");
}

TEST(GgufName, IsThatOfTheCardOfTheConfigurationOrOfTheFolder) {
  const TestFolder folder;
  const std::filesystem::path model = folder.path() / "my-model";
  std::filesystem::create_directory(model);
  EXPECT_EQ(gguf_name_of(model), "My Model");
  EXPECT_EQ(gguf_name_of(model / ""), "My Model");
  write_text_file(model / "config.json", R"({"_name_or_path": "org/small-chat"})");
  EXPECT_EQ(gguf_name_of(model), "Small Chat");
  write_text_file(model / "config.json", R"({"_name_or_path": "/home/me/small-chat"})");
  EXPECT_EQ(gguf_name_of(model), "My Model");
  write_text_file(model / "README.md", "---\nlicense: mit\nmodel_name: \"The name\"\n---\n");
  EXPECT_EQ(gguf_name_of(model), "The name");
  EXPECT_EQ(license_of(model), "mit");
}

}  // namespace
}  // namespace tessera
