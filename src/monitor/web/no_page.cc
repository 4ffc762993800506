// Takes the place of the page in a build without npm.
#include <span>
#include <string_view>

namespace tessera::page_parts {

extern const std::span<const std::string_view> before_data;
extern const std::span<const std::string_view> after_data;
extern const std::string_view security_policy;
const std::span<const std::string_view> before_data;
const std::span<const std::string_view> after_data;
const std::string_view security_policy;

}  // namespace tessera::page_parts
