#include "hub/hub_answers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expect_error.h"
#include "hub/digest.h"

namespace tessera {
namespace {

TEST(HubAnswers, EtagsLoseQuotesAndWeakness) {
  EXPECT_EQ(normalized_etag("\"abc\""), "abc");
  EXPECT_EQ(normalized_etag("W/\"abc\""), "abc");
  EXPECT_EQ(normalized_etag("abc"), "abc");
  EXPECT_EQ(normalized_etag(""), std::nullopt);
}

TEST(HubAnswers, EtagsThatWouldLeaveTheCacheAreNone) {
  for (const char* etag : {"..", ".", "a/b", "\"../../x\"", "a\nb", "\xff"})
    EXPECT_EQ(normalized_etag(etag), std::nullopt) << etag;
  EXPECT_EQ(normalized_etag(std::string(201, 'a')), std::nullopt);
}

TEST(HubAnswers, PathsStayInTheirFolder) {
  for (const char* path : {"a", "a/b.json", "a b/c", "\xc3\xa9"}) EXPECT_TRUE(is_safe_path(path)) << path;
  for (const char* path : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\nb", "\xff"})
    EXPECT_FALSE(is_safe_path(path)) << path;
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
}

TEST(HubAnswers, RepositoryInformationIsChecked) {
  const RepoInfo info =
      parse_repo_info(R"({"sha": "abc123", "siblings": [{"rfilename": "a/b"}, {"rfilename": "c"}]})", "api");
  EXPECT_EQ(info.commit, "abc123");
  ASSERT_EQ(info.files.size(), 2U);
  EXPECT_EQ(info.files[0].path, "a/b");
  EXPECT_FALSE(parse_repo_info(R"({"sha": "abc123"})", "api").has_files);
  for (const char* text :
       {"", "[]", "{}", R"({"sha": 1})", R"({"sha": "../x"})", R"({"sha": "a", "siblings": [{}]})",
        R"({"sha": "a", "siblings": [{"rfilename": "../../.bashrc"}]})"})
    expect_error(ExitCode::kBadData, {"api"}, [&] { parse_repo_info(text, "api"); });
}

TEST(HubAnswers, TreesListFilesWithSizes) {
  const std::string sha256(64, 'a');
  std::vector<HubFile> files;
  parse_tree_page(R"([{"type": "directory", "path": "data", "oid": "x", "size": 0},
    {"type": "file", "path": "b", "oid": ")" +
                      std::string(40, '1') + R"(", "size": 5},
    {"type": "file", "path": "a", "oid": ")" +
                      std::string(40, '2') + R"(", "size": 130, "lfs": {"oid": ")" + sha256 +
                      R"(", "size": 5000, "pointerSize": 130}}])",
                  "api", &files);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].size_bytes, 5);
  EXPECT_EQ(files[1].size_bytes, 5000);
  EXPECT_EQ(files[1].lfs_sha256, sha256);
  const auto again = parse_tree_cache(tree_cache_text(files));
  ASSERT_TRUE(again);
  ASSERT_EQ(again->size(), 2U);
  EXPECT_EQ(again->at(0).path, "a");
  EXPECT_EQ(again->at(0).lfs_sha256, sha256);
  EXPECT_EQ(again->at(1).blob_id, std::string(40, '1'));
  for (const char* text : {R"([{"type": "file", "path": "a", "oid": "x", "size": 1}])",
                           R"([{"type": "file", "path": "a", "oid": "", "size": -1}])", R"({"error": "no"})"})
    expect_error(ExitCode::kBadData, {"api"}, [&] { parse_tree_page(text, "api", &files); });
  EXPECT_FALSE(parse_tree_cache(R"({"format_version": 2, "files": {}})"));
  EXPECT_FALSE(parse_tree_cache(R"({"format_version": 1, "files": {"../a": {"size": 1}}})"));
}

TEST(HubAnswers, LinksNameTheNextPage) {
  EXPECT_EQ(next_page("<https://hub/api?cursor=a>; rel=\"next\""), "https://hub/api?cursor=a");
  EXPECT_EQ(next_page("<x>; rel=\"first\", <y>; rel=next"), "y");
  for (const char* header : {"", "<x", "x>; rel=\"next\"", "<x>; rel=\"last\""})
    EXPECT_EQ(next_page(header), "") << header;
}

TEST(HubAnswers, RetryAfterIsInSeconds) {
  using std::chrono::seconds;
  EXPECT_EQ(retry_after({{"retry-after", "7"}}), seconds(7));
  EXPECT_EQ(retry_after({{"ratelimit", "\"api\";r=0;t=55"}}), seconds(55));
  EXPECT_EQ(retry_after({{"ratelimit", "\"api\";r=3;t=55"}, {"retry-after", "2"}}), seconds(2));
  EXPECT_EQ(retry_after({{"retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"}}), std::nullopt);
  EXPECT_EQ(retry_after({}), std::nullopt);
}

TEST(HubAnswers, ContentRangesAreChecked) {
  const auto range = parse_content_range("bytes 10-19/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->begin, 10);
  EXPECT_EQ(range->end, 20);
  EXPECT_EQ(range->total, 100);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->total, -1);
  for (const char* header :
       {"", "bytes */100", "bytes 5-4/10", "bytes 0-10/10", "items 0-1/2", "bytes 0-1", "bytes -1-2/3"})
    EXPECT_FALSE(parse_content_range(header)) << header;
}

// FIPS 180-4, "abc"; `printf abc | git hash-object --stdin`.
TEST(ContentDigest, KnowsSha256AndGitsSha1) {
  const std::string sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const std::string git = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";
  for (const std::string& etag : {sha256, git}) {
    std::string found;
    ContentDigest digest(etag, 3);
    digest.add("a");
    digest.add("bc");
    EXPECT_TRUE(digest.matches(&found));
    EXPECT_EQ(found, etag);
    ContentDigest other(etag, 3);
    other.add("abd");
    EXPECT_FALSE(other.matches(&found));
  }
  std::string found;
  ContentDigest unknown("an-etag-of-another-kind", 3);
  unknown.add("xyz");
  EXPECT_TRUE(unknown.matches(&found));
}

}  // namespace
}  // namespace tessera
