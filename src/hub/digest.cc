#include "hub/digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

void check(int status) { TESSERA_CHECK(status == 1, "libcrypto refused to hash"); }

}  // namespace

ContentDigest::ContentDigest(const std::string& etag, int64_t size_bytes) : etag_(etag) {
  const bool is_hex = std::all_of(etag.begin(), etag.end(),
                                  [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (!is_hex || (etag.size() != 64 && etag.size() != 40)) return;
  const bool is_sha256 = etag.size() == 64;
  name_ = is_sha256 ? "sha256" : "git sha1";
  context_ = std::shared_ptr<evp_md_ctx_st>(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  check(EVP_DigestInit_ex(context_.get(), is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr));
  if (!is_sha256) {
    add(fmt::format("blob {}", size_bytes));
    add({"", 1});
  }
}

void ContentDigest::add(std::string_view data) {
  if (context_) check(EVP_DigestUpdate(context_.get(), data.data(), data.size()));
}

bool ContentDigest::matches(std::string* found) {
  if (!context_) return true;
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(context_.get(), bytes, &size));
  *found = hex({reinterpret_cast<const char*>(bytes), size});
  return *found == etag_;
}

}  // namespace tessera
