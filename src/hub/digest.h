// Checks of content against the names that git and git-lfs give it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace tessera {

// Hashes bytes as they arrive, with the function that an etag of the Hub stands for: 64 hexadecimal digits
// are the SHA-256 of the content, 40 the SHA-1 of "blob SIZE\0" and the content (gitformat-loose). Other
// etags say nothing about the content.
class ContentDigest {
 public:
  ContentDigest(const std::string& etag, int64_t size_bytes);

  void add(std::string_view data);
  // Whether the digest of all bytes added is the expected one. `found` is set to the digest computed.
  bool matches(std::string* found);
  const char* name() const { return name_; }

 private:
  std::string etag_;
  const char* name_ = "";                   // "sha256", "git sha1"
  std::shared_ptr<evp_md_ctx_st> context_;  // null: nothing to check
};

}  // namespace tessera
