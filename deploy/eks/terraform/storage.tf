locals {
  bucket = var.bucket != "" ? var.bucket : one(aws_s3_bucket.data[*].bucket)
  # Lustre: 988 and 1018 to 1023 in both directions; NFS: 2049 toward the file system.
  ports = { fsx = [[988, 988], [1018, 1023]], efs = [[2049, 2049]], s3 = [] }[var.storage]
}

resource "aws_s3_bucket" "data" {
  count         = var.bucket == "" && var.storage != "efs" ? 1 : 0
  bucket        = "tessera-${var.name}-${data.aws_caller_identity.this.account_id}-${var.region}"
  force_destroy = true # down.sh asks first, or leaves the bucket alone (--keep_bucket)
}

resource "aws_s3_bucket_public_access_block" "data" {
  count                   = length(aws_s3_bucket.data)
  bucket                  = aws_s3_bucket.data[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# The logs of jobs, if Loki keeps them: not the data's bucket, which is another's if --bucket names it.
resource "aws_s3_bucket" "logs" {
  count         = var.logs ? 1 : 0
  bucket        = "tessera-${var.name}-${data.aws_caller_identity.this.account_id}-${var.region}-logs"
  force_destroy = true
}

resource "aws_s3_bucket_public_access_block" "logs" {
  count                   = length(aws_s3_bucket.logs)
  bucket                  = aws_s3_bucket.logs[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# Karpenter gives this group to the training nodes (tag karpenter.sh/discovery) and the file system carries it too.
resource "aws_security_group" "storage" {
  count       = var.storage == "s3" ? 0 : 1
  name        = "${var.name}-storage"
  description = "Training nodes and their file system"
  vpc_id      = aws_vpc.this.id
  dynamic "ingress" {
    for_each = local.ports
    content {
      from_port = ingress.value[0]
      to_port   = ingress.value[1]
      protocol  = "tcp"
      self      = true
    }
  }
  dynamic "egress" {
    for_each = local.ports
    content {
      from_port = egress.value[0]
      to_port   = egress.value[1]
      protocol  = "tcp"
      self      = true
    }
  }
  tags = { Name = "${var.name}-storage", "karpenter.sh/discovery" = var.name }
}

resource "aws_fsx_lustre_file_system" "this" {
  count                       = var.storage == "fsx" ? 1 : 0
  deployment_type             = "PERSISTENT_2"
  file_system_type_version    = "2.15" # an older server refuses clients of AL2023
  storage_capacity            = var.fsx_capacity_gib
  per_unit_storage_throughput = var.fsx_efa ? 1000 : var.fsx_throughput
  data_compression_type       = "LZ4"
  subnet_ids                  = [aws_subnet.private[local.zone].id]
  security_group_ids          = concat([aws_security_group.storage[0].id], var.fsx_efa ? aws_security_group.efa[*].id : [])
  # Set when it is made. It needs servers of its own for metadata, and the group that is open to itself.
  efa_enabled = var.fsx_efa ? true : null
  dynamic "metadata_configuration" {
    for_each = var.fsx_efa ? [1] : []
    content {
      mode = "AUTOMATIC"
    }
  }
  # What must outlive the file system is in the bucket; backups would cost on. The provider makes none at the end either.
  automatic_backup_retention_days = 0
  tags                            = { Name = var.name }
}

# /s3 on the file system is the bucket, both ways: what appears there is seen here and what is written here goes there.
resource "aws_fsx_data_repository_association" "this" {
  count                            = length(aws_fsx_lustre_file_system.this)
  file_system_id                   = aws_fsx_lustre_file_system.this[0].id
  file_system_path                 = "/s3"
  data_repository_path             = "s3://${local.bucket}"
  batch_import_meta_data_on_create = true
  s3 {
    auto_import_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
    auto_export_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
  }
}

resource "aws_efs_file_system" "this" {
  count            = var.storage == "efs" ? 1 : 0
  encrypted        = true
  performance_mode = "generalPurpose"
  throughput_mode  = "elastic"
  tags             = { Name = var.name }
}

resource "aws_efs_mount_target" "this" {
  for_each        = { for zone, i in local.zones : zone => i if var.storage == "efs" }
  file_system_id  = aws_efs_file_system.this[0].id
  subnet_id       = aws_subnet.private[each.key].id
  security_groups = [aws_security_group.storage[0].id]
}

# The pods' user owns what it sees as the root.
resource "aws_efs_access_point" "this" {
  count          = length(aws_efs_file_system.this)
  file_system_id = aws_efs_file_system.this[0].id
  posix_user {
    uid = 1000
    gid = 1000
  }
  root_directory {
    path = "/tessera"
    creation_info {
      owner_uid   = 1000
      owner_gid   = 1000
      permissions = "0770"
    }
  }
}
