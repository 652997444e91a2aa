package dir

import "golang.org/x/sys/unix"

// networkFileSystems are those on which several hosts may be, by their magic numbers of statfs(2).
var networkFileSystems = map[uint32]string{
	unix.NFS_SUPER_MAGIC:     "NFS",
	unix.CIFS_SUPER_MAGIC:    "CIFS",
	unix.SMB2_SUPER_MAGIC:    "SMB",
	unix.SMB_SUPER_MAGIC:     "SMB",
	unix.AFS_FS_MAGIC:        "AFS",
	unix.AFS_SUPER_MAGIC:     "AFS",
	unix.CEPH_SUPER_MAGIC:    "Ceph",
	unix.CODA_SUPER_MAGIC:    "Coda",
	unix.OCFS2_SUPER_MAGIC:   "OCFS2",
	unix.V9FS_MAGIC:          "9P",
	unix.FUSE_SUPER_MAGIC:    "FUSE",
	uint32(gfs2Magic):        "GFS2",
	uint32(lustreSuperMagic): "Lustre",
}

// Not in golang.org/x/sys/unix: GFS2_MAGIC of linux/gfs2_ondisk.h and LUSTRE_SUPER_MAGIC of
// lustre_user.h.
const gfs2Magic, lustreSuperMagic = 0x01161970, 0x0BD00BD0

// Network is the network file system that the directory is on, "" for none: creating a file and
// locking one do not hold between hosts as they do on one.
func (d *Dir) Network() string {
	var s unix.Statfs_t
	if err := unix.Statfs(d.path, &s); err != nil {
		return ""
	}
	return networkFileSystems[uint32(s.Type)]
}
