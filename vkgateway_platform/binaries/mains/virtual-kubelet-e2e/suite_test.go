// The end-to-end suite of virtual-kubelet, as a provider imports it, for a node that exists already.
package suite

import (
	"flag"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/test/e2e"
)

var (
	kubeconfig = flag.String("kubeconfig", "", "kubeconfig of the cluster that has the node")
	namespace  = flag.String("namespace", "default", "namespace of the suite's pods")
	nodeName   = flag.String("node-name", "", "the node to test")
)

func TestEndToEnd(t *testing.T) {
	e2e.NewEndToEndTestSuite(e2e.EndToEndTestSuiteConfig{
		Kubeconfig: *kubeconfig,
		Namespace:  *namespace,
		NodeName:   *nodeName,
	}).Run(t)
}
