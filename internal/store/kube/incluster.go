package kube

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
)

// inCluster is the service account of the pod that this process is in.
func inCluster() (*rest.Config, string, error) {
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, "", errors.New("kubeconfig is not given, and this process is in no pod of Kubernetes': name a kubeconfig file in store.kubernetes.kubeconfig")
	}
	if err != nil {
		return nil, "", fmt.Errorf("service account: %w", err)
	}
	namespace, err := os.ReadFile(namespaceFile)
	if err != nil {
		return nil, "", fmt.Errorf("service account: %w", err)
	}
	return config, strings.TrimSpace(string(namespace)), nil
}
