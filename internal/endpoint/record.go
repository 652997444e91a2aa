package endpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/statefile"
)

// recordVersion changes when an older agent could misread a record. Version 2 has what version 1
// did not know: a network, and more than one address of a family. What has neither is written as
// version 1, so that an older agent can go on with it.
const recordVersion = 2

// record is an endpoint as it stands on disk.
type record struct {
	Info
	Version int `json:"version"`
	// Boot is the kernel's boot ID: after another boot nothing of the record exists.
	Boot string `json:"boot"`
	// Object is the name under which the endpoint is published in its namespace.
	Object string `json:"object"`
	// ExtraLabels came with the request, not with the pod's declaration.
	ExtraLabels map[string]string `json:"extraLabels,omitempty"`
}

func (r record) objectKey() string { return r.Namespace + "/" + r.Object }

// check refuses a record that cannot have been written by this package.
func (r record) check(id string) error {
	if r.ID != id || r.ID != (Attachment{r.ContainerID, r.IfName}).ID() {
		return fmt.Errorf("id %q does not belong to file, container and interface", r.ID)
	}
	if r.State == StateGone {
		return nil
	}
	if r.Slot == 0 || r.Slot > MaxSlot {
		return fmt.Errorf("slot %d is not in 1-%d", r.Slot, MaxSlot)
	}
	if _, err := net.ParseMAC(r.MAC); err != nil {
		return fmt.Errorf("mac: %w", err)
	}
	if r.HostIf == "" || r.PodIf == "" || len(r.Addresses()) == 0 {
		return errors.New("hostIf, podIf or addresses missing")
	}
	if r.NetworkID > datapath.MaxNetwork {
		return fmt.Errorf("network %d is not in 0-%d", r.NetworkID, datapath.MaxNetwork)
	}
	if err := checkFixed(r.Addresses()); err != nil {
		return err
	}
	return nil
}

// cursors is what the pools need to go on where they were.
type cursors struct {
	ipam.Cursors        // of the cluster's network
	Slot         uint16 `json:"slot,omitempty"`
	// Networks are those of the others.
	Networks map[uint32]ipam.Cursors `json:"networks,omitempty"`
}

func cursorsOf(nets *ipam.Networks, slots *ipam.Slots) cursors {
	c := cursors{Slot: slots.Cursor(), Networks: nets.Cursors()}
	c.Cursors = c.Networks[0]
	delete(c.Networks, 0)
	return c
}

// disk is the state directory.
type disk struct {
	dir string
	log *slog.Logger
}

func openDisk(dir string, log *slog.Logger) (*disk, error) {
	d := &disk{dir: dir, log: log}
	if err := os.MkdirAll(d.endpoints(), 0o700); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	left := filepath.Join(d.endpoints(), "*.json")
	return d, errors.Join(statefile.RemoveTemporaries(d.cursorPath()),
		statefile.RemoveTemporaries(left), statefile.RemoveTemporaries(d.probePath()))
}

func (d *disk) endpoints() string           { return filepath.Join(d.dir, "endpoints") }
func (d *disk) recordPath(id string) string { return filepath.Join(d.endpoints(), id+".json") }
func (d *disk) cursorPath() string          { return filepath.Join(d.dir, "ipam.json") }
func (d *disk) probePath() string           { return filepath.Join(d.dir, ".probe") }

// load reads every record. A file that cannot be a record is set aside, so that one
// damaged file does not stop a node; one of a newer version stops it, because what it
// describes is alive and must not be taken for nothing.
func (d *disk) load() ([]record, error) {
	entries, err := os.ReadDir(d.endpoints())
	if err != nil {
		return nil, fmt.Errorf("read endpoint records: %w", err)
	}
	var out []record
	for _, e := range entries {
		path := filepath.Join(d.endpoints(), e.Name())
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord {
			continue
		}
		rec, err := readRecord(path, id)
		if err == nil {
			out = append(out, rec)
			continue
		}
		if rec.Version > recordVersion {
			return nil, fmt.Errorf("record %s was written by a newer Weft (version %d, this one knows %d): run that one, or clean up with it first",
				path, rec.Version, recordVersion)
		}
		d.log.Error("setting a damaged endpoint record aside", "file", path, "err", err)
		if _, err := statefile.SetAside(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readRecord(path, id string) (record, error) {
	var rec record
	data, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if rec.Version < 1 || rec.Version > recordVersion {
		return rec, fmt.Errorf("version %d is unknown", rec.Version)
	}
	var former struct { // two fields by the names that they had first
		Pod string `json:"road"`    // glossary: format
		CNI string `json:"cniRoad"` // glossary: format
	}
	if err := json.Unmarshal(data, &former); err != nil {
		return rec, err
	}
	rec.PodDatapath, rec.CNIDatapath = cmp.Or(rec.PodDatapath, former.Pod), cmp.Or(rec.CNIDatapath,
		former.CNI)
	return rec, rec.check(id)
}

// save writes a record so that after a crash either the old or the new one is there.
func (d *disk) save(rec record) error {
	rec.Version = 1
	if rec.NetworkID != 0 || len(rec.More) > 0 {
		rec.Version = recordVersion
	}
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode endpoint record: %w", err)
	}
	if err := statefile.Write(d.recordPath(rec.ID), data); err != nil {
		return fmt.Errorf("write endpoint record: %w", err)
	}
	return nil
}

// remove deletes a record; it is not an error if there is none.
func (d *disk) remove(id string) error {
	if err := os.Remove(d.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove endpoint record: %w", err)
	}
	return statefile.SyncDir(d.endpoints())
}

// saveCursors is not synced to the disk, and failing does not matter much: the cursors
// only make reuse late, and only for the boot that wrote them.
func (d *disk) saveCursors(c cursors) {
	data, err := json.Marshal(c)
	if err == nil {
		err = statefile.WriteVolatile(d.cursorPath(), data)
	}
	if err != nil {
		d.log.Warn("ipam state not written, after a restart addresses may be reused early", "file",
			d.cursorPath(), "err", err)
	}
}

// loadCursors returns the zero cursors when there are none to be had: the records
// alone decide which addresses are free.
func (d *disk) loadCursors() cursors {
	var c cursors
	data, err := os.ReadFile(d.cursorPath())
	if errors.Is(err, fs.ErrNotExist) {
		return cursors{}
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		d.log.Warn("ipam state unreadable, addresses start from the first again", "file",
			d.cursorPath(), "err", err)
		return cursors{}
	}
	return c
}

func (c cursors) apply(nets *ipam.Networks, slots *ipam.Slots) {
	nets.SetCursors(map[uint32]ipam.Cursors{0: c.Cursors})
	nets.SetCursors(c.Networks)
	slots.SetCursor(c.Slot)
}

// damaged lists the records that were set aside.
func (d *disk) damaged() []string { return statefile.Aside(filepath.Join(d.endpoints(), "*.json")) }

// bootID names this boot of the kernel.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
