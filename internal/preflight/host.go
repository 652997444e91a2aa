package preflight

import (
	"context"
	"io/fs"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/sealer/fit"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// Host is the machine, as far as the checks look at it. Nothing here changes it.
type Host interface {
	UID() int
	// Kernel is its release.
	Kernel() string
	ReadFile(path string) ([]byte, error)
	// ReadDir gives the names in a directory, sorted.
	ReadDir(path string) ([]string, error)
	Stat(path string) (fs.FileInfo, error)
	OnBPFFS(path string) (bool, error)
	// Free is the room in bytes on the file system that path is on, or would be.
	Free(path string) (uint64, error)
	// Running is the pid of the agent of this configuration, 0 if none runs.
	Running(cfg *config.Config) int
	// Datapath loads the programs, attaches none and lets go of all. With encryption it also says
	// what seals; if nothing does, its error is an EngineError.
	Datapath(cfg *config.Config) (esp.EngineStatus, error)
	IPv6() bool
	// Objects are those of the store of this configuration.
	Objects(ctx context.Context, cfg *config.Config) (*store.Snapshot, error)
	Links(cfg *config.Config, node *v1alpha1.Node) (startup.Links, error)
	PodMTU(cfg *config.Config, uplinks int, node *v1alpha1.Node,
		snapshot *store.Snapshot) (int, error)
	Forward() ([]Chain, error)
	Now() time.Time
	// Synchronised says whether the kernel takes its clock for right.
	Synchronised() bool
	// Built is when this program was, zero if it does not know.
	Built() time.Time
	// Certificate is why peers would refuse this node's.
	Certificate(ctx context.Context, cfg *config.Config) error
	// KEK is what is wrong with the key-encryption key, as far as that can be told without asking a
	// KMS.
	KEK(ctx context.Context, cfg *config.Config) error
	fit.Host
}

// Chain is a chain of the packet filter that sees what is forwarded.
type Chain struct {
	Family, Table, Name string
	// Drops says that what no rule takes is dropped.
	Drops bool
	Rules int
}
