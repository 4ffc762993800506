// For tests: an HTTPS server on loopback, and the authority that signs its certificate.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace tessera {

// A new key and a certificate of its own, for the names localhost and 127.0.0.1: the server's and its CA's in
// one.
class TestCertificate {
 public:
  TestCertificate();
  std::string pem() const;

 private:
  friend class TlsServer;
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
};

class TlsServer {
 public:
  struct Request {
    std::string line;           // "POST /path HTTP/1.1"
    std::string authorization;  // the header
    std::string body;
  };
  struct Reply {
    int status = 200;
    std::string body = "{}";
    std::chrono::milliseconds delay{0};  // before it; the destructor does not wait for it
  };
  using Handler = std::function<Reply(const Request&)>;

  explicit TlsServer(const TestCertificate& certificate, Handler handler = {});
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  // For connections from now on.
  void use(const TestCertificate& certificate);
  int port() const { return port_; }
  std::vector<Request> requests() const;
  // False if there are fewer after `limit`.
  bool wait_for_requests(size_t count, std::chrono::milliseconds limit) const;
  int64_t num_connections() const { return num_connections_; }

 private:
  void accept();
  void serve(SSL* connection);

  Handler handler_;
  UniqueFd listener_;
  int port_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<SSL_CTX> context_;
  std::vector<Request> requests_;
  UniqueFd current_;
  bool is_ending_ = false;
  std::atomic<int64_t> num_connections_ = 0;
  std::thread thread_;
};

}  // namespace tessera
