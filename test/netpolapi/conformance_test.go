// Package netpolapi has network-policy-api's own conformance tests judge what internal/policy
// compiles: unmodified, against an API that is a list in memory, and pods whose connections succeed
// where the compiled sets of both ends allow them. It is a module of its own, for what they need.
package netpolapi

import (
	"net/http/httptest"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// notSupported is what docs/policy.md names as missing.
const notSupported = suite.SupportClusterNetworkPolicyEgressNodePeers

// TestConformance runs all of them but those about nodes as peers.
func TestConformance(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{api.Install, appsv1.AddToScheme,
		corev1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	j := &judge{}
	j.client = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(
		interceptor.Funcs{Create: j.create}).Build()
	server := httptest.NewServer(j)
	t.Cleanup(server.Close)
	restConfig := rest.Config{Host: server.URL}
	set, err := kubernetes.NewForConfig(&restConfig)
	if err != nil {
		t.Fatal(err)
	}
	s := suite.New(suite.Options{
		Client: j.client, ClientSet: set, KubeConfig: restConfig, EnableAllSupportedFeatures: true,
		ExemptFeatures: sets.New(notSupported),
		// The answer is there at once, and does not change by itself.
		TimeoutConfig: config.TimeoutConfig{PokeInterval: 10 * time.Millisecond,
			PokeTimeout: time.Minute},
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
	allowed, denied := j.allowed.Load(), j.denied.Load()
	t.Logf("%d tests, %d connections allowed, %d denied", len(tests.ConformanceTests), allowed,
		denied)
	if len(tests.ConformanceTests) < 20 || allowed < 100 || denied < 100 {
		t.Error("that is too little to judge anything")
	}
}
