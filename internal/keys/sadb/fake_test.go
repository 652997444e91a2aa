package sadb

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/schedule"
)

// still is a clock that only a test moves.
type still struct {
	boot time.Duration
	wall time.Time
}

func (c *still) Boot() time.Duration                  { return c.boot }
func (c *still) Wall() time.Time                      { return c.wall }
func (c *still) After(time.Duration) <-chan time.Time { panic("a table waits for nothing") }

func (c *still) pass(d time.Duration) { c.boot, c.wall = c.boot+d, c.wall.Add(d) }

const (
	begin = 1000 * time.Hour
	lanes = 2
)

var errDatapath = errors.New("the map is full")

// datapath holds SAs in memory, notes what is done in order, and fails at one thing.
type datapath struct {
	clock   *still
	sas     []esp.SAStatus
	sealing map[string]uint8
	done    []string
	fails   string
	keys    []*esp.SA // that were installed, as the caller has them now
}

func (d *datapath) do(what string, args ...any) error {
	d.done = append(d.done, fmt.Sprintln(append([]any{what}, args...)...))
	if d.fails == what {
		return errDatapath
	}
	return nil
}

func (d *datapath) InstallSA(sa *esp.SA) error {
	d.keys = append(d.keys, sa)
	if err := d.do("install", sa.Node, sa.Out, sa.Epoch, sa.Lane); err != nil {
		return err
	}
	d.sas = append(d.sas, esp.SAStatus{
		Node: sa.Node, Out: sa.Out, Epoch: sa.Epoch, Lane: sa.Lane, ID: sa.ID, Number: sa.Number,
		Installed: d.clock.wall, Expires: sa.Expires,
	})
	return nil
}

func (d *datapath) RemoveSAs(node string, out bool, epoch uint8) error {
	return d.do("remove", node, out, epoch)
}

func (d *datapath) ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error {
	return d.do("extend", node, out, epoch, id, until.Sub(d.clock.wall))
}

func (d *datapath) SealWith(node string, epoch uint8) error {
	if err := d.do("seal", node, epoch); err != nil {
		return err
	}
	d.sealing[node] = epoch
	return nil
}

func (d *datapath) SAs() ([]esp.SAStatus, error) { return d.sas, d.do("read") }

func (d *datapath) Sealing() (out []esp.Sealing, err error) {
	for node, epoch := range d.sealing {
		out = append(out, esp.Sealing{Node: node, Epoch: epoch})
	}
	return out, d.do("read sealing")
}

func (d *datapath) VMGeneration() (uint64, error) { return 0, nil }
func (d *datapath) Lanes() int                    { return lanes }

func newTable(t *testing.T) (*Table, *datapath, *still) {
	t.Helper()
	c := &still{boot: begin, wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	d := &datapath{clock: c, sealing: map[string]uint8{}}
	return New(d, c, 1<<20), d, c
}

// direction makes the keys of an epoch for some lanes.
func direction(number, id uint64, count uint8) *schedule.Direction {
	d := &schedule.Direction{Number: number, ID: id}
	for lane := range count {
		d.Lanes = append(d.Lanes,
			schedule.LaneKey{Lane: lane, Key: [32]byte{1, lane}, Salt: [4]byte{2, lane}})
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
