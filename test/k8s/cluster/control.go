package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"weft.dev/weft/test/k8s"
)

// patience bounds waits for what a cluster does by itself, on a machine that does much else.
const patience = 5 * time.Minute

// control runs kube-controller-manager and kube-scheduler.
func (c *Cluster) control() {
	c.t.Helper()
	key, ca := c.API.Secrets()
	config := func(name string) string {
		return c.API.Kubeconfig(c.API.User(c.t, "system:"+name), "default")
	}
	manager := config("kube-controller-manager")
	c.launch("kube-controller-manager", "--kubeconfig", manager,
		"--authentication-kubeconfig", manager, "--authorization-kubeconfig", manager,
		"--use-service-account-credentials", "--service-account-private-key-file", key,
		"--root-ca-file", ca, "--leader-elect=false", "--cert-dir", filepath.Join(c.dir, "kcm"),
		"--flex-volume-plugin-dir", filepath.Join(c.dir, "flex"), "--allocate-node-cidrs",
		"--cluster-cidr", fmt.Sprintf("%s,%s", c.Pods[0], c.Pods[1]),
		"--node-cidr-mask-size-ipv4", "24", "--node-cidr-mask-size-ipv6", "64")
	scheduler := config("kube-scheduler")
	c.launch("kube-scheduler", "--kubeconfig", scheduler, "--authentication-kubeconfig", scheduler,
		"--authorization-kubeconfig", scheduler, "--leader-elect=false",
		"--cert-dir", filepath.Join(c.dir, "scheduler"))
}

// launch runs a program of the control plane until the test ends. It comes back by itself after
// the API server was away.
func (c *Cluster) launch(name string, args ...string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name+".log")
	log, err := os.Create(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(k8s.Binary(c.t, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // killed
		if text, err := os.ReadFile(path); err == nil && c.t.Failed() {
			c.t.Logf("%s: %s", name, text[max(0, len(text)-2000):])
		}
	})
}

// Eventually polls until ok returns nil, and fails with its last answer.
func (c *Cluster) Eventually(what string, ok func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := ok(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Core is a resource of the core group.
func Core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

// Endpoints are Weft's.
var Endpoints = schema.GroupVersionResource{Group: "weft.dev", Version: "v1alpha1",
	Resource: "endpoints"}

// awaitNode waits until a Node object is as it should.
func (c *Cluster) awaitNode(n *Node, what string, ok func(map[string]any) bool) {
	c.t.Helper()
	c.Eventually("node "+n.Name+" "+what, func(ctx context.Context) error {
		o, err := c.API.Dynamic.Resource(Core("nodes")).Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && !ok(o.Object) {
			status, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			err = fmt.Errorf("conditions: %v", status)
		}
		return err
	})
}

// ready says whether an object has the condition Ready.
func ready(object map[string]any) bool {
	all, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	for _, item := range all {
		if one, _ := item.(map[string]any); one["type"] == "Ready" {
			return one["status"] == "True"
		}
	}
	return false
}

// Apply applies the objects of a YAML text.
func (c *Cluster) Apply(text string) {
	c.t.Helper()
	for _, o := range k8s.Documents(c.t, []byte(text)) {
		if err := c.API.Apply(o); err != nil {
			c.t.Fatalf("apply %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// serviceAccount waits until a new namespace has the one that pods need, which a controller makes.
func (c *Cluster) serviceAccount(namespace string) {
	c.t.Helper()
	c.Eventually("namespace "+namespace+" has a service account", func(ctx context.Context) error {
		_, err := c.API.Dynamic.Resource(Core("serviceaccounts")).Namespace(namespace).
			Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}
