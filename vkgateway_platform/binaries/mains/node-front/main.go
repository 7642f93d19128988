// The pod that virtual-kubelet's end-to-end suite takes for the node's kubelet: it has the node's name and answers on
// the kubelet's port. It passes each request to that node's proxy in the pod's own API server, as its service account.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	server := &http.Server{
		Addr:              ":10250",
		Handler:           proxy(os.Getenv("NODE_NAME")),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate()}},
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Fatal(server.ListenAndServeTLS("", ""))
}

func proxy(node string) http.Handler {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(read("ca.crt"))
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	target := &url.URL{Scheme: "https", Host: address, Path: "/api/v1/nodes/" + node + "/proxy"}
	return &httputil.ReverseProxy{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}},
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(target)
			request.Out.Header.Set("Authorization", "Bearer "+string(read("token")))
		},
	}
}

func read(name string) []byte {
	content, err := os.ReadFile(account + name)
	if err != nil {
		log.Fatal(err)
	}
	return content
}

// certificate is signed by itself: API servers do not verify the pods that they proxy to.
func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}
}
