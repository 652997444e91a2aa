package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/etcd"
	etcdtest "weft.dev/weft/test/etcd"
)

// serverCertificate makes one for the loopback that signs itself.
func serverCertificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	cert, key = filepath.Join(dir, "etcd.crt"), filepath.Join(dir, "etcd.key")
	must(t,
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600))
	must(t,
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return cert, key
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEtcdPermissions gives nodes' own certificates the roles that docs/store-etcd.md gives them:
// each can do what an agent does, and cannot touch another node's endpoints, nor anything that
// people declare.
func TestEtcdPermissions(t *testing.T) {
	dir := t.TempDir()
	authority, err := ca.Init(filepath.Join(dir, "ca"), "weft.local", time.Hour*24)
	must(t, err)
	files := map[string]nodeid.Paths{}
	for _, name := range []string{"root", "a", "b", "outsider"} {
		at := filepath.Join(dir, name)
		files[name] = nodeid.Paths{Cert: filepath.Join(at, "node.crt"),
			Key: filepath.Join(at, "node.key"), Bundle: filepath.Join(at, "ca.crt")}
		issued, err := authority.Issue(name, time.Hour)
		must(t, err)
		must(t, issued.Write(files[name]))
		issued.Zero()
	}
	cert, key := serverCertificate(t, dir)
	c := etcdtest.Start(t, etcdtest.Options{CA: files["root"].Bundle, Cert: cert, Key: key})
	as := func(name string) store.Editor {
		where := config.Store{Etcd: config.Etcd{Endpoints: c.Endpoints(), Prefix: "/weft",
			TLS: config.EtcdTLS{CA: cert, Cert: files[name].Cert, Key: files[name].Key}}}
		opened, err := OpenStore(where, name, nil)
		must(t, err)
		t.Cleanup(func() { opened.(*etcd.Etcd).Close() })
		return opened
	}
	eventually(t, "etcd to answer",
		func() bool { _, err := as("root").Snapshot(); return err == nil })
	grantRoles(t, c, cert, files["root"])

	admin, a, b, outsider := as("root"), as("a"), as("b"), as("outsider")
	node := func(name string, n byte) *v1alpha1.Node {
		return &v1alpha1.Node{Metadata: v1alpha1.ObjectMeta{Name: name},
			Spec: v1alpha1.NodeSpec{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2,
				n})}}}
	}
	ep := func(node string) *v1alpha1.Endpoint {
		return &v1alpha1.Endpoint{Metadata: v1alpha1.ObjectMeta{Namespace: "shop",
			Name: "web-" + node},
			Spec: v1alpha1.EndpointSpec{NodeName: node,
				Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}}
	}
	must(t, admin.PutObject(node("a", 1)))
	must(t, admin.PutObject(node("b", 2)))
	must(t, a.PutEndpoint(ep("a")))
	must(t, b.PutEndpoint(ep("b")))
	must(t, b.DeleteEndpoint("shop/nothing"))
	identity := &v1alpha1.Identity{Metadata: v1alpha1.ObjectMeta{Name: "5000"},
		Spec: v1alpha1.IdentitySpec{SPIFFEID: "spiffe://weft.local/ns/shop/sa/web"}}
	must(t, a.(store.IdentityStore).CreateIdentity(identity))
	leader := leadership(a, "a")
	must(t, leader.Campaign(t.Context(), nil))
	leader.Resign()
	if s, err := b.Snapshot(); err != nil || len(s.Nodes) != 2 || len(s.Endpoints) != 2 ||
		len(s.Identities) != 1 {
		t.Errorf("b sees %+v, %v", s, err)
	}
	for what, row := range map[string]struct {
		err  error
		want string
	}{
		"another's endpoint": {a.PutEndpoint(ep("b")), "etcd refuses this to the user"},
		"another's endpoint deleted": {a.DeleteObject(v1alpha1.KindEndpoint, "shop/web-b"),
			"etcd refuses this to the user"},
		"its own Node": {a.PutObject(node("a", 9)), "etcd refuses this to the user"},
		"another's Node deleted": {a.DeleteObject(v1alpha1.KindNode, "b"),
			"etcd refuses this to the user"},
		"a policy": {a.PutObject(&v1alpha1.EncryptionPolicy{Metadata: v1alpha1.ObjectMeta{Name: "all", Namespace: "shop"}, Spec: v1alpha1.EncryptionPolicySpec{Selector: &v1alpha1.PodSelector{}}}), "etcd refuses this to the user"},
		"an outsider reads": {second(outsider.Snapshot()),
			"etcd refuses this to the user"},
		"an outsider writes": {outsider.PutEndpoint(ep("outsider")),
			"etcd refuses this to the user"},
	} {
		if row.err == nil || !strings.Contains(row.err.Error(), row.want) {
			t.Errorf("%s: %v", what, row.err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// grantRoles does with etcd's client what docs/store-etcd.md does with etcdctl.
func grantRoles(t *testing.T, c *etcdtest.Cluster, serverCA string, root nodeid.Paths) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(root.Cert, root.Key)
	must(t, err)
	pool, raw := x509.NewCertPool(), second2(os.ReadFile(serverCA))
	pool.AppendCertsFromPEM(raw)
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}})
	must(t, err)
	defer client.Close()
	ctx := t.Context()
	user := func(name string, roles ...string) {
		_, err := client.UserAddWithOptions(ctx, name, "",
			&clientv3.UserAddOptions{NoPassword: true})
		must(t, err)
		for _, role := range roles {
			_, err := client.UserGrantRole(ctx, name, role)
			must(t, err)
		}
	}
	grant := func(role, key string, kind clientv3.PermissionType, prefix bool) {
		end := ""
		if prefix {
			end = clientv3.GetPrefixRangeEnd(key)
		}
		_, err := client.RoleGrantPermission(ctx, role, key, end, kind)
		must(t, err)
	}
	for _, role := range []string{"root", "weft-agent", "weft-a", "weft-b"} {
		_, err := client.RoleAdd(ctx, role)
		must(t, err)
	}
	grant("weft-agent", "/weft/", clientv3.PermissionType(clientv3.PermRead), true)
	grant("weft-agent", "/weft/identity/", clientv3.PermissionType(clientv3.PermReadWrite), true)
	grant("weft-agent", "/weft/epoch/", clientv3.PermissionType(clientv3.PermReadWrite), true)
	grant("weft-agent", "/weft/leader", clientv3.PermissionType(clientv3.PermReadWrite), false)
	grant("weft-a", "/weft/endpoint/a/", clientv3.PermissionType(clientv3.PermReadWrite), true)
	grant("weft-b", "/weft/endpoint/b/", clientv3.PermissionType(clientv3.PermReadWrite), true)
	user("root", "root")
	user("a", "weft-agent", "weft-a")
	user("b", "weft-agent", "weft-b")
	_, err = client.AuthEnable(ctx)
	must(t, err)
}

func second2(raw []byte, _ error) []byte { return raw }

// TestStartWithoutEtcd: an agent says what it waits for, and is ready once etcd has been listed.
// When etcd goes again, it stays ready with what it has and says since when; what comes meanwhile
// is learned afterwards.
func TestStartWithoutEtcd(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	where := config.Store{Etcd: config.Etcd{Endpoints: c.Endpoints(), Prefix: "/weft"}}
	admin, err := OpenStore(where, "", nil)
	must(t, err)
	defer admin.(*etcd.Etcd).Close()
	w := sealedWorld()
	for _, kind := range []string{v1alpha1.KindNode, v1alpha1.KindIdentity, v1alpha1.KindEndpoint} {
		for _, o := range w.snapshot.Objects(kind) {
			must(t, admin.PutObject(o))
		}
	}
	read, err := ReadObjects(t.Context(), where)
	must(t, err)
	if len(read.Nodes) != len(w.snapshot.Nodes) ||
		len(read.Endpoints) != len(w.snapshot.Endpoints) || len(read.Errors) != 0 {
		t.Errorf("read %+v", read)
	}
	c.Members[0].Kill()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for ctx, want := range map[context.Context]string{t.Context(): "no answer from etcd at unix://",
		over: "context canceled"} {
		if _, err := ReadObjects(ctx, where); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("read without etcd: %v, want %q", err, want)
		}
	}

	cfg := strictConfig(t)
	cfg.Store = where
	client, _ := w.start(t, cfg)
	eventually(t, "the word that etcd is away", func() bool {
		s, err := client.Status(t.Context())
		return err == nil && !s.Ready &&
			strings.Contains(s.Waiting, "Node object a in /weft in etcd at unix://") &&
			strings.Contains(s.Waiting, "etcd is away since")
	})
	c.Members[0].Start()
	eventually(t, "ready", func() bool { return ready(client) })
	c.Members[0].Kill()
	eventually(t, "the word that etcd is away again", func() bool {
		s, err := client.Status(t.Context())
		return err == nil && s.Ready && len(s.Store.Errors) == 1 &&
			strings.Contains(s.Store.Errors[0].Error(), "the objects read last stay in use")
	})
	if known, missing := w.nodesNow(); len(known) != 1 || len(missing) != 0 {
		t.Errorf("while etcd is away: %v, missing %v", known, missing)
	}
	c.Members[0].Start()
	late := &v1alpha1.Node{Metadata: v1alpha1.ObjectMeta{Name: "late"}, Spec: v1alpha1.NodeSpec{
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}}}
	eventually(t, "etcd to take a node", func() bool { return admin.PutObject(late) == nil })
	eventually(t, "the late node", func() bool {
		s, err := client.Status(t.Context())
		known, _ := w.nodesNow()
		return err == nil && len(known) == 2 && len(s.Store.Errors) == 0
	})
}

// TestNetworkFileSystem: a directory that other hosts may have is a problem that says what to use.
func TestNetworkFileSystem(t *testing.T) {
	for network, want := range map[string]int{"": 0, "NFS": 1} {
		w := sealedWorld()
		w.network = network
		client, _ := w.start(t, strictConfig(t))
		eventually(t, "ready", func() bool { return ready(client) })
		s, err := client.Status(t.Context())
		must(t, err)
		if got := strings.Count(strings.Join(s.Problems, "\n"),
			"a network file system: if another node uses it"); got != want {
			t.Errorf("%q: %v", network, s.Problems)
		}
	}
}
