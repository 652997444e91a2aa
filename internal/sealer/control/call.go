package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// call is an operation that brings no descriptor.
func (c *Client) call(ctx context.Context, op Op, count int, fill func([]byte) []byte,
	take func(payload []byte, count int) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	file, err := c.exchange(ctx, op, count, fill, take)
	if file != nil {
		file.Close() //nolint:errcheck // not asked for
	}
	return err
}

// exchange sends a request and reads its answer, with c.mu held. take gets each message's records.
// After any failure but the process's own refusal the connection is closed: an answer that comes
// late would be taken for the next one's. The buffer is wiped each time: keys were in it.
func (c *Client) exchange(ctx context.Context, op Op, count int, fill func([]byte) []byte,
	take func(payload []byte, count int) error) (*os.File, error) {
	if c.conn == nil {
		return nil, ErrClosed
	}
	defer clear(c.buf)
	ctx, cancel := bounded(ctx)
	defer cancel()
	deadline, _ := ctx.Deadline()
	conn, stopped := c.conn, make(chan struct{})
	err := conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() {
		conn.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // ends by its own deadline
		close(stopped)
	})
	defer func() {
		if !stop() {
			<-stopped // or it would cut off the next operation
		}
	}()
	if err == nil {
		err = ctx.Err()
	}
	var file *os.File
	if err == nil {
		err = c.send(op, count, fill)
	}
	if err == nil {
		file, err = c.receive(op, take)
	}
	if err == nil {
		return file, nil
	}
	if file != nil {
		file.Close() //nolint:errcheck // nothing was written to it
	}
	if !errors.Is(err, ErrRefused) {
		c.close() //nolint:errcheck // the error is err
		err = errors.Join(err, ErrClosed)
	}
	return nil, fmt.Errorf("%s of weft-sealer: %w", op, err)
}

func (c *Client) send(op Op, count int, fill func([]byte) []byte) error {
	message := appendHeader(c.buf[:0], header{op: op, count: count})
	if fill != nil {
		message = fill(message)
	}
	_, err := c.conn.Write(message)
	return err
}

func (c *Client) receive(op Op, take func(payload []byte, count int) error) (file *os.File,
	err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(c.buf, oob)
		if err != nil {
			return file, err
		}
		if got := descriptor(oob[:oobn]); got != nil {
			if file != nil {
				file.Close() //nolint:errcheck // nothing was written to it
			}
			file = got
		}
		h, payload, err := decodeHeader(c.buf[:n])
		if err != nil {
			return file, err
		}
		if flags&unix.MSG_TRUNC != 0 || h.op != op {
			return file, errLength
		}
		if h.status != statusOK {
			return file, fmt.Errorf("%w: %.200q", ErrRefused, payload)
		}
		if take != nil {
			if err := take(payload, h.count); err != nil {
				return file, err
			}
		}
		if !h.more {
			return file, nil
		}
	}
}

// descriptor is what came with a message, nil if nothing did.
func descriptor(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	for _, fd := range fds[1:] {
		unix.Close(fd) //nolint:errcheck // not asked for
	}
	return os.NewFile(uintptr(fds[0]), "weft_sealer")
}
