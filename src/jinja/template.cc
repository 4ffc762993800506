#include "jinja/template.h"

#include <algorithm>

#include "base/text.h"
#include "jinja/parse/program.h"
#include "jinja/runtime/interpreter.h"
#include "jinja/values/rendering.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;  // the longest in use have some tens of KiB

}  // namespace

Template Template::parse(std::string_view source, const std::string& origin) {
  if (std::ssize(source) > kMaxTemplateBytes) {
    fail(ExitCode::kBadData, "{}: expected a template of at most {}, found {}", origin,
         format_bytes(kMaxTemplateBytes), format_bytes(std::ssize(source)));
  }
  if (const int64_t at = find_invalid_utf8(source); at >= 0) {
    const auto line = 1 + std::count(source.begin(), source.begin() + at, '\n');
    fail(ExitCode::kBadData, "{}: line {}: expected UTF-8, found the byte 0x{:02x}", origin, line,
         static_cast<unsigned char>(source[static_cast<size_t>(at)]));
  }
  std::unique_ptr<Program> program = parse_program(source, origin);
  bind_names(*program);
  return Template(std::shared_ptr<const Program>(std::move(program)));
}

Rendered Template::render(const Value::Object& context, const RenderOptions& options) const {
  Rendering rendering(program_->origin, options);
  Interpreter interpreter(rendering, *program_, context);
  interpreter.run();
  return {std::move(rendering.output), std::move(interpreter).generation(), std::move(rendering.spans),
          std::move(interpreter).traced_items()};
}

bool Template::has_generation() const { return program_->has_generation; }

}  // namespace tessera::jinja
