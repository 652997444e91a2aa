package cluster

import "testing"

func TestMain(m *testing.M) { Main(m) }

func TestCluster(t *testing.T) {
	c := Start(t, 2)
	for _, n := range c.Nodes {
		t.Log(n.Name)
	}
}
